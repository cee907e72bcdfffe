"""The commands, their presets and their launch configurations."""
