/* Pages for readers come before decisions, measurements and the changelog in the search. */
var Scorer = {
  score: ([docname, title, anchor, descr, score]) => {
    const first = /^(start|how-to)\//.test(docname) ? 8 : 0;
    const last = /^(decisions|repository)\/|^(measured-before|performance|accuracy)/.test(docname) ? 12 : 0;
    return score + first - last;
  },
  // The values of Sphinx.
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
