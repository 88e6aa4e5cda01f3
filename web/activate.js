// Copies the lease when its button is pressed, and has the button say so.
"use strict";
document.getElementById("copy").addEventListener("click", async ({ target }) => {
  const lease = document.getElementById("lease");
  lease.select();
  try {
    await navigator.clipboard.writeText(lease.value);
  } catch { // an older browser, or one that does not allow it
    if (!document.execCommand("copy")) return;
  }
  target.textContent = target.dataset.done;
});
