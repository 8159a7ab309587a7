// Calls of the service's API. An error's message is the service's own line, its status HTTP's.

export async function ask(method, path, body, type = "application/json") {
  const given = { method, headers: {} };
  if (body !== undefined) {
    given.headers["Content-Type"] = type;
    given.body = type === "application/json" ? JSON.stringify(body) : body;
  }
  let answer;
  try {
    answer = await fetch(path, given);
  } catch {
    throw new Error("The service does not answer.");
  }
  if (answer.status === 401 && path !== "/api/login") {
    location.reload(); // the login page comes in its place
  }
  const isJson = (answer.headers.get("content-type") ?? "").startsWith("application/json");
  const content = isJson ? await answer.json() : null;
  if (!answer.ok) {
    const message = content?.error?.message ?? `The service answers ${answer.status}.`;
    throw Object.assign(new Error(message), { status: answer.status });
  }
  return content;
}
