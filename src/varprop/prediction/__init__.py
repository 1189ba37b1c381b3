"""From moments to predictions: probabilities, labels, confidences."""
