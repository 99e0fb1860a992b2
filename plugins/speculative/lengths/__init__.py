"""How much is speculated: policies over the candidates of any drafter."""
