"""Draft trees grown one path at a time, from a law of each path: shares no code with the drafter.

`law(path)` gives the head's probabilities of the token after a path of candidates.
"""

import math


def ranked_children(law, path, count):
    """The `count` likeliest next tokens of a path with their probabilities, ties by id."""
    given = law(path)
    best = sorted(range(len(given)), key=lambda token: (-given[token], token))[:count]
    return [(token, float(given[token])) for token in best if given[token] > 0]


def dynamic_paths(law, depth, top_k, count):
    """EAGLE-2: the `count` likeliest of all candidates: (path, probability of its last token)."""
    found, frontier = [], [((), 0.0)]
    for _ in range(depth):
        grown = []
        for path, score in frontier:
            for token, chance in ranked_children(law, path, top_k):
                grown.append(((*path, token), score + math.log(chance), chance))
        found += grown
        frontier = [(p, s) for p, s, _ in sorted(grown, key=lambda child: -child[1])[:top_k]]
    best = sorted(found, key=lambda child: -child[1])[:count]
    return [(path, chance) for path, _, chance in best]


def static_paths(law, ranks, count):
    """The candidates of fixed paths of child ranks, likeliest first: (path, probability)."""
    tokens, found = {(): ()}, []
    scores = {(): 0.0}
    for rank_path in sorted(ranks, key=lambda path: (len(path), path)):
        above = rank_path[:-1]
        token, chance = ranked_children(law, tokens[above], rank_path[-1] + 1)[-1]
        tokens[rank_path] = (*tokens[above], token)
        scores[rank_path] = scores[above] + math.log(chance)
        found.append((tokens[rank_path], scores[rank_path], chance))
    best = sorted(found, key=lambda child: -child[1])[:count]
    return [(path, chance) for path, _, chance in best]


def paths_of(draft):
    """The path of tokens to each candidate of a draft."""
    paths = []
    for node, token in enumerate(draft.tokens):
        parent = node - 1 if draft.parents is None else draft.parents[node]
        paths.append((*paths[parent], token) if parent >= 0 else (token,))
    return paths
