"""What a fit learned of its data holds for all that comes after it, by every face and in every container."""
