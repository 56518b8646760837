"""Gates side by side on real services: what is compared, how it is measured, what the figures say."""
