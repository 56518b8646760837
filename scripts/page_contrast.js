// Returns the contrast, as WCAG 2 reckons it, of what a page shows: [{kind, what, ratio}], kind text, edge or bar.
() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = (color) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = color;
    canvas.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const over = ([r, g, b, a], back) => [r, g, b].map((part, i) => part * a + back[i] * (1 - a));
  const behind = (element) => {
    const layers = [];
    for (let one = element; one; one = one.parentElement) layers.unshift(rgba(getComputedStyle(one).backgroundColor));
    return layers.reduce((back, layer) => over(layer, back), [255, 255, 255]);
  };
  const light = (rgb) => {
    const [r, g, b] = rgb.map((part) => part / 255).map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ratio = (one, other) => {
    const [dark, bright] = [light(one), light(other)].sort((a, b) => a - b);
    return (bright + 0.05) / (dark + 0.05);
  };
  const against = (color, back) => ratio(over(rgba(color), back), back);
  const name = (element) => `${element.tagName.toLowerCase()}${element.id && `#${element.id}`}.${[...element.classList].join(".")}`;
  const isShown = (element) => element.checkVisibility({ visibilityProperty: true });
  const found = [];

  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let text = texts.nextNode(); text; text = texts.nextNode()) {
    const element = text.parentElement;
    if (!text.data.trim() || !isShown(element)) continue;
    const back = behind(element);
    const what = `${name(element)}: ${text.data.trim().slice(0, 30)}`;
    found.push({ kind: "text", what, ratio: against(getComputedStyle(element).color, back) });
  }
  for (const element of document.querySelectorAll("button, input, select, textarea")) {
    if (!isShown(element)) continue;
    const style = getComputedStyle(element);
    found.push({ kind: "text", what: name(element), ratio: against(style.color, behind(element)) });
    if (element.type === "radio") continue;
    found.push({ kind: "edge", what: name(element), ratio: against(style.borderTopColor, behind(element.parentElement)) });
  }
  for (const field of document.querySelectorAll("input[placeholder]")) {
    if (!isShown(field)) continue;
    const color = getComputedStyle(field, "::placeholder").color;
    found.push({ kind: "text", what: `${name(field)}: ${field.placeholder}`, ratio: against(color, behind(field)) });
  }
  for (const drawn of document.querySelectorAll("svg > *")) {
    const { fill, stroke } = getComputedStyle(drawn);
    const color = fill === "none" ? stroke : fill;
    found.push({ kind: "bar", what: name(drawn), ratio: against(color, behind(drawn.parentElement)) });
  }
  for (const token of document.querySelectorAll(".t:not(.solo)")) {
    const edge = getComputedStyle(token).borderBottomColor;
    found.push({ kind: "bar", what: `line below ${name(token)}`, ratio: against(edge, behind(token.parentElement)) });
  }
  return found;
}
