"""Published models as sources: Hugging Face directories and GGUF files, read without torch and pickle."""
