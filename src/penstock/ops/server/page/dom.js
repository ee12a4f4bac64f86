// Nodes from plain calls, and a way to bring a part of the page up to date without losing focus, scrolling or what is
// open. Whatever is not a node becomes a text node: nothing here ever reads markup.

const SVG = "http://www.w3.org/2000/svg";
const HANDLERS = ["onclick", "onchange", "oninput", "onsubmit", "onkeydown", "ontoggle", "onpointermove", "onpointerleave", "onpointerdown", "onpointerup"];
const KEEPS_OWN_VALUE = new Set(["INPUT", "SELECT", "TEXTAREA"]);

export function h(tag, props, ...children) {
  return build(document.createElement(tag), props, children);
}

export function s(tag, props, ...children) {
  return build(document.createElementNS(SVG, tag), props, children);
}

function build(node, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (HANDLERS.includes(name)) node[name] = value;
    else if (name.startsWith("on")) throw new Error(`no handler of that name: ${name}`);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...flat(children));
  return node;
}

function flat(children) {
  return children
    .flat(Infinity)
    .filter((child) => child !== null && child !== undefined && child !== false)
    .map((child) => (child instanceof Node ? child : document.createTextNode(String(child))));
}

/** Make the children of `target` what is given, keeping nodes that stand for the same thing: by `data-key`, or by
 * place. A node with `data-own` looks after its children itself. */
export function patch(target, ...children) {
  const fresh = flat(children);
  const byKey = new Map();
  for (const child of target.children) if (child.dataset?.key) byKey.set(child.dataset.key, child);
  let cursor = target.firstChild;
  for (const node of fresh) {
    const key = node.dataset?.key;
    const found = key ? byKey.get(key) : matching(cursor, node);
    if (found && alike(found, node)) {
      if (key) byKey.delete(key);
      if (found === cursor) cursor = cursor.nextSibling;
      else target.insertBefore(found, cursor);
      morph(found, node);
    } else {
      target.insertBefore(node, cursor);
    }
  }
  while (cursor) {
    const next = cursor.nextSibling;
    cursor.remove();
    cursor = next;
  }
}

function matching(old, fresh) {
  return old && !old.dataset?.key && alike(old, fresh) ? old : null;
}

function alike(old, fresh) {
  return old.nodeName === fresh.nodeName && old.namespaceURI === fresh.namespaceURI;
}

function morph(old, fresh) {
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return;
  }
  for (const handler of HANDLERS) if (old[handler] !== fresh[handler]) old[handler] = fresh[handler];
  for (const { name } of [...old.attributes]) {
    if (!fresh.hasAttribute(name) && !(name === "open" || name === "style")) old.removeAttribute(name);
  }
  for (const { name, value } of fresh.attributes) {
    if (KEEPS_OWN_VALUE.has(old.nodeName) && (name === "value" || name === "checked")) continue;
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  if (old.hasAttribute("data-own")) return;
  patch(old, ...fresh.childNodes);
}
