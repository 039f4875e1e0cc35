"""CLIP, SigLIP, ViT, DINOv2 and YOLOS as Hugging Face publishes them."""
