"""The Tensor: its operators, methods, creation and interchange with other libraries."""
