"""What is learned from a trained model: orders, counts, influence. Also the exact countdown."""
