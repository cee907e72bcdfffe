"""Fine-tune and score on GLUE, SuperGLUE, XNLI and users' own tasks."""
