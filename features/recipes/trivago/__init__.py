"""The RecSys Challenge 2019: sessions to pairs of session and hotel."""
