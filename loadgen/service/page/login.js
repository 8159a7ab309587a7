// The login: exchanges the token for a cookie that no script can read.

import { ask } from "./api.js";

document.getElementById("login").addEventListener("submit", async (event) => {
  event.preventDefault();
  const field = document.getElementById("token");
  const problem = document.getElementById("problem");
  problem.textContent = "";
  try {
    await ask("POST", "/api/login", { token: field.value });
    location.reload(); // the page comes in its place, at the same address
  } catch (error) {
    problem.textContent = error.message;
    field.select();
  }
});
