"""Does context pay past the trained length, on Markov chains that a model of RoPE reads under methods without training?"""
