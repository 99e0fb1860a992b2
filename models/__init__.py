"""The small trained checkpoints that ship with Interlock, in Hugging Face format."""
