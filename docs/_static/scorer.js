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

// Sphinx finds only pages that have all words of a query. Where few do, pages with most of the
// words follow them. This file becomes part of language_data.js, which pages of the search load.
const FEW_RESULTS = 3;

function pagesWithMostWords(searchTerms, excludedTerms, known) {
  const pages = new Map();
  for (const term of searchTerms) {
    for (const result of Search.performTermsSearch(new Set([term]), excludedTerms)) {
      const page = pages.get(result[0]) ?? { count: 0, score: 0, result };
      page.count += 1;
      page.score += Scorer.score(result);
      pages.set(result[0], page);
    }
  }
  const others = [...pages.values()].filter(({ result }) => !known.has(result[0]));
  const most = Math.max(...others.map(({ count }) => count));
  const least = known.size ? Math.floor(searchTerms.size / 2) + 1 : searchTerms.size / 2;
  return others
    .filter(({ count }) => count >= Math.max(most - 1, least))
    .sort((a, b) => a.count - b.count || a.score - b.score)
    .map(({ result, count, score }) => [...result.slice(0, 4), 100 * count + score, ...result.slice(5)]);
}

function widenSearch() {
  const search = Search._performSearch;
  Search._performSearch = (query, searchTerms, excludedTerms, ...others) => {
    const results = search(query, searchTerms, excludedTerms, ...others);
    const known = new Set(results.map((result) => result[0]));
    if (known.size >= FEW_RESULTS || searchTerms.size < 2) return results;
    return [...pagesWithMostWords(searchTerms, excludedTerms, known), ...results]; // best last
  };
}

if (typeof Search !== "undefined") widenSearch();
else document.addEventListener("DOMContentLoaded", widenSearch);
