"""Two measurements beside the tutorial on first principles: training without the scale factor, attention beside an LSTM."""
