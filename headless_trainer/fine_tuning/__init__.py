"""Fine-tuning and scoring on GLUE, SuperGLUE, XNLI and tasks of one's own."""
