"""Does an encoding break at the first code that training did not reach?"""
