"""Graph + rules + posterior → a network of moments."""
