// Text of a model as elements. Everything is put in as text, so nothing in it can become markup.

const WORDS = new Set(("and as async await bool break case catch char class const continue def default del do double " +
  "elif else enum except export extends false False finally float fn for from func function global if impl import in " +
  "int interface is lambda let match mut new nil None not null or package pass pub raise return self static struct " +
  "super switch this throw true True try type typeof use var void while with yield").split(" "));
const TOKEN = /(#.*|\/\/.*|\/\*[\s\S]*?(?:\*\/|$))|("(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'?|`(?:\\.|[^`\\])*`?)|(\b\d[\w.]*)|([A-Za-z_]\w*)/g;

function piece(name, text) {
  const span = document.createElement("span");
  span.className = name;
  span.textContent = text;
  return span;
}

/** Colour code by what nearly all languages share: comments, strings, numbers and common words. */
export function highlighted(text) {
  const code = document.createElement("code");
  let last = 0;
  for (const found of text.matchAll(TOKEN)) {
    const [whole, comment, string, number, word] = found;
    const name = comment ? "comment" : string ? "string" : number ? "number" : WORDS.has(word) ? "word" : "";
    if (!name) continue;
    code.append(text.slice(last, found.index), piece(name, whole));
    last = found.index + whole.length;
  }
  code.append(text.slice(last));
  return code;
}

function line(text) {
  const paragraph = document.createElement("p");
  text.split(/(`[^`\n]+`|\*\*[^*\n]+\*\*)/).forEach((part, at) => {
    if (at % 2 === 0) return paragraph.append(part);
    const bold = part.startsWith("**");
    const inner = document.createElement(bold ? "strong" : "code");
    inner.textContent = part.slice(bold ? 2 : 1, bold ? -2 : -1);
    paragraph.append(inner);
  });
  return paragraph;
}

/** Return elements for a text with fenced code, also while a fence is still open. */
export function rendered(text) {
  const found = [];
  text.split(/^```/m).forEach((part, at) => {
    if (at % 2 === 0) {
      for (const one of part.split(/\n{2,}/)) if (one.trim()) found.push(line(one.replace(/^\n+|\n+$/g, "")));
      return;
    }
    const pre = document.createElement("pre");
    pre.tabIndex = 0;
    pre.append(highlighted(part.replace(/^[^\n]*\n?/, "").replace(/\n$/, "")));
    found.push(pre);
  });
  return found;
}
