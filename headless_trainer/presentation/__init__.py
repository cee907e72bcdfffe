"""Draw pictures, write tables, and test whether a difference in them is one."""
