"""What torch promises and no formula of one operator shows: random numbers, conversions, files, forms, modes."""
