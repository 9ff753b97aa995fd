"""How many heads of a trained language model can be removed, under which encoding, and does the choice of heads matter?"""
