// What is hard to see: WCAG 2.1, 1.4.3 for texts (4.5 to 1) and 1.4.11 for drawings (3 to 1).
(() => {
  const TEXT_RATIO = 4.5, DRAWING_RATIO = 3;
  const style = getComputedStyle;
  const all = (selector) => [...document.querySelectorAll(`main ${selector}`)];
  const parse = (colour) => colour.match(/[\d.]+/g).map(Number);
  const linear = (value) => value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  const luminance = ([red, green, blue]) =>
    0.2126 * linear(red / 255) + 0.7152 * linear(green / 255) + 0.0722 * linear(blue / 255);
  const findBackground = (element) => {
    for (; element; element = element.parentElement) {
      const colour = parse(style(element).backgroundColor);
      if (colour.length < 4 || colour[3] === 1) return colour;
    }
  };
  const ratio = (element, colour) => {
    const [dark, bright] = [luminance(parse(colour)), luminance(findBackground(element))].sort((a, b) => a - b);
    return (bright + 0.05) / (dark + 0.05);
  };
  const hasText = (element) =>
    [...element.childNodes].some((child) => child.nodeType === Node.TEXT_NODE && child.data.trim());
  return [
    ...all("*").filter(hasText).filter((element) => ratio(element, style(element).color) < TEXT_RATIO),
    ...all("path").filter((element) => ratio(element, style(element).stroke) < DRAWING_RATIO),
    ...all("rect").filter((element) => ratio(element, style(element).fill) < DRAWING_RATIO),
    ...all(".state").filter((element) => ratio(element, style(element).borderLeftColor) < DRAWING_RATIO),
  ].map((element) => element.outerHTML.slice(0, 200));
})()
