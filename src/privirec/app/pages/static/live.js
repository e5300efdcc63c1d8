// Keeps the part of a page that changes up to date. Without it, reload by hand.
"use strict";
const PAUSE = 2000;
const part = document.getElementById("live");

async function refresh() {
  if (document.hidden) return;
  try {
    const answer = await fetch(part.dataset.from, {credentials: "same-origin", cache: "no-store"});
    if (!answer.ok) throw new Error(String(answer.status));
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    if (fresh.body.innerHTML === part.innerHTML || part.contains(document.activeElement)) return;
    part.replaceChildren(...fresh.body.childNodes);
    part.classList.remove("stale");
  } catch {
    part.classList.add("stale");
  }
}

if (part) setInterval(refresh, PAUSE);
