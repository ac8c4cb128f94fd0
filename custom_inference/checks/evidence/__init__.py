"""Evidence of whole models: log p(x) with globals and latents integrated out, exactly or by sampling with an error."""
