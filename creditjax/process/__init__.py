"""Learned judgement of steps: records and their readers, labels, metrics, searched labels, reward models, judges.

    records, readers   solutions with step labels, from the files that are published
    labels, logic      what a step's label is, from roll-outs, judges, references or truth tables
    omegaprm           labels by Monte Carlo tree search with binary search for the first error
    prm                a per-step head on a transformer, one direction or two, and its signals
    judges             a task's oracle, a noisy one, and an HTTP endpoint behind one interface
    metrics            ProcessBench F1, best of n, votes, step AUROC

Records and judges are host code and need nothing but Python; labels, metrics and models are JAX.
"""
