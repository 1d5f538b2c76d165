"""The Core tensor IR: nodes, rules, lowering and passes."""
