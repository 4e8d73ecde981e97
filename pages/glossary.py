"""The Glossary page: every word of the vocabulary, how a figure came to be, how far a source can be trusted."""

import streamlit as st

from pages import _context as context
from pages import _controls as controls
from pages.figures import glossary as figures
from pages.figures import number
from pages.figures.terms import PROVENANCE, STACK, STATES, label, meaning

t, language = context.say(), context.language()
st.title(t("glossary.title"))
st.write(t("glossary.intro"))
wanted = controls.text("term", t("glossary.find"), language, placeholder=t("glossary.find_hint"), width=320)

if not wanted:
    st.subheader(t("glossary.bar"), anchor=False)
    st.write(t("glossary.bar_text", parts=" → ".join(label(word, language) for word in STACK)))
st.subheader(t("glossary.words"), anchor="words")
found = figures.matching(wanted)
if not found:
    st.info(t("glossary.none", text=number.markdown(wanted)))
for term in found:
    color, words = st.columns([1, 40], vertical_alignment="top")
    with color:
        st.html(figures.swatch(term))
    with words:
        unit = t("glossary.unit", unit=term.unit)
        st.markdown(f"**{label(term.word, language)}** · `{term.word}` · {unit}  \n{meaning(term.word, language)}")

st.subheader(t("glossary.provenance"), anchor="provenance")
for name, sign in PROVENANCE.items():
    st.markdown(f"{sign} **{t(f'common.provenance_{name}')}**: {t(f'glossary.{name}')}")
st.subheader(t("glossary.states"), anchor="states")
for name, (sign, _, _) in STATES.items():
    st.markdown(f"{sign} **{t(f'common.state_{name}')}**: {t(f'glossary.state_{name}')}")
