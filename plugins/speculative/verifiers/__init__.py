"""Accept rules: which candidates are kept, and the token after them."""
