"""What is done with a model.

In reading order:

    reviews         labelled texts, from files or found for the demo
    metrics         predictions compared with the truth
    saved           the file of a trained classifier, read without trust
    frozen          features + logistic regression
    fill_mask       the masked word
    base            what a task is: data, examples, answers, measure
    labels          what the label of a text is: one name, several, or a number
    classification  texts or pairs to labels
    choice          which of several texts answers a question
    entities        the stretches of words that tags mark, and their score
    tagging         sentences to a tag for each word
    squad           questions on passages: the file and the official score
    answering       questions to the places of their answers
    masked_text     raw text, of which hidden words are guessed
    demo            the main job, start to end
"""
