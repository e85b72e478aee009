// What a screen reader stumbles over: names, headings, lists, landmarks, the tab order, ids, title and language.
(() => {
  const findings = [];
  const all = (selector) => [...document.querySelectorAll(selector)];
  const report = (rule, elements) =>
    elements.forEach((element) => findings.push(`${rule}: ${element.outerHTML.slice(0, 200)}`));
  report("a drawing without a name", all("svg, progress").filter((element) => !element.getAttribute("aria-label")));
  report("a drawing that is no image", all("svg").filter((element) => element.getAttribute("role") !== "img"));
  const levels = all("h1, h2, h3, h4").map((element) => Number(element.localName[1]));
  if (levels.filter((level) => level === 1).length !== 1 || levels[0] !== 1) findings.push("not one h1, first");
  levels.forEach((level, index) => {
    if (index && level > levels[index - 1] + 1) findings.push(`h${level} behind h${levels[index - 1]}`);
  });
  report("an empty heading", all("h1, h2, h3").filter((element) => !element.textContent.trim()));
  report("a list of others", all("ul > :not(li), dl > :not(div), dl > div > :not(dt, dd)"));
  report("a tab order of its own", all("[tabindex]").filter((element) => element.tabIndex !== 0));
  report("outside of a landmark", all("body > :not(main, footer, script, #offline)"));
  report("a role on a heading", all(":is(h1, h2, h3)[role]"));
  const ids = all("[id]").map((element) => element.id);
  if (new Set(ids).size !== ids.length) findings.push("two elements with one id");
  if (!document.title || document.documentElement.lang !== "en") findings.push("no title or language");
  return findings;
})()
