"""Language models: import, generation, fine-tuning, evaluation."""
