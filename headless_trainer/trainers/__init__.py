"""The trainers and the parts they hold."""
