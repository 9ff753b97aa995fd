"""How far does a model with RoPE read past its training length, under which change of its frequencies?"""
