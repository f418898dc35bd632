"""Prompts for the target to answer, typical of chat models. Made from templates, with a seed."""

from __future__ import annotations

import random
from pathlib import Path

from ...core.errors import ConfigError

_QUESTIONS = (
    "What is {topic}?",
    "Explain {topic} in simple terms.",
    "Tell me about {topic}.",
    "Why does {topic} matter?",
    "Give me five tips about {topic}.",
    "List the most important facts about {topic}.",
    "Write a short story about {topic}.",
    "Write a poem about {topic}.",
    "Write a short essay on {topic}.",
    "How would you teach {topic} to a child?",
    "How do I get started with {topic}?",
    "What are common mistakes people make with {topic}?",
    "What are the advantages and disadvantages of {topic}?",
    "Compare {topic} and {other}.",
    "What do {topic} and {other} have in common?",
    "Write a dialogue between two friends about {topic}.",
    "Describe the history of {topic}.",
    "Write an email to a colleague about {topic}.",
    "Write a product description about {topic}.",
    "Give me a recipe or a plan that has to do with {topic}.",
    "I am worried about {topic}. What should I do?",
    "Can you help me understand how {topic} works, step by step?",
    "What is the future of {topic}?",
    "Summarize what is known about {topic} in a few sentences.",
    "Write a Python function that has to do with {topic}.",
    "Create a quiz with three questions about {topic}.",
    "Suggest a title and an outline for an article about {topic}.",
    "What questions should I ask an expert in {topic}?",
)
_TOPICS = (
    "photosynthesis",
    "the water cycle",
    "black holes",
    "climate change",
    "the Roman Empire",
    "the French Revolution",
    "machine learning",
    "the Python language",
    "sorting algorithms",
    "databases",
    "healthy breakfasts",
    "bread baking",
    "growing tomatoes",
    "learning to play the guitar",
    "jazz music",
    "classical music",
    "chess",
    "soccer",
    "running a marathon",
    "yoga",
    "meditation",
    "sleep",
    "stress at work",
    "job interviews",
    "saving money",
    "investing",
    "inflation",
    "small businesses",
    "remote work",
    "time management",
    "public speaking",
    "learning a new language",
    "travel in Japan",
    "a weekend in Paris",
    "camping in the mountains",
    "dogs",
    "cats",
    "bees",
    "whales",
    "dinosaurs",
    "volcanoes",
    "earthquakes",
    "the moon",
    "Mars",
    "electric cars",
    "bicycles",
    "trains",
    "airplanes",
    "solar energy",
    "recycling",
    "rainforests",
    "the ocean",
    "vaccines",
    "the human heart",
    "vitamins",
    "allergies",
    "friendship",
    "parenting",
    "kindness",
    "a lost key",
    "a brave little robot",
    "an old lighthouse",
    "a dragon who is afraid of fire",
    "a rainy day",
    "Shakespeare",
    "modern art",
    "photography",
    "movies",
    "board games",
    "the internet",
    "privacy online",
    "social media",
    "artificial intelligence",
    "ethics",
    "democracy",
    "human rights",
    "probability",
    "fractions",
    "geometry",
    "gravity",
    "electricity",
    "atoms",
    "evolution",
    "genetics",
    "DNA",
    "the printing press",
    "ancient Egypt",
    "the Silk Road",
    "coffee",
    "tea",
    "chocolate",
    "pasta",
    "vegetarian cooking",
    "gardening",
    "houseplants",
    "birthday parties",
    "moving to a new city",
    "buying a house",
    "writing a resume",
    "customer service",
)


def default_prompts(count: int, seed: int) -> list[str]:
    """`count` prompts in random order. They repeat only after all combinations of question and
    topic."""
    noise = random.Random(seed)
    pairs = [(question, topic) for question in _QUESTIONS for topic in _TOPICS]
    noise.shuffle(pairs)
    return [
        question.format(topic=topic, other=noise.choice(_TOPICS))
        for question, topic in (pairs[i % len(pairs)] for i in range(count))
    ]


def read_prompts(path: Path) -> list[str]:
    """Read one prompt per line. Raises ConfigError if the file has none or cannot be read."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    prompts = [line.strip() for line in lines if line.strip()]
    if not prompts:
        raise ConfigError(f"{path} has no prompts: write one per line")
    return prompts
