"""Tools that look at the model: parity with transformers, speed, pictures. Nothing else imports them."""
