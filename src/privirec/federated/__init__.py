"""What is computed with the clients, free of transport and of cryptography."""
