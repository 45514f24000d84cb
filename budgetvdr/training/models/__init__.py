"""Models that can be trained; the loop knows them by one interface (`budgetvdr.training.models.model`)."""
