// What a token can open, and what each of that means.

/** Every scope there is; those that open the most stand last. */
export const SCOPES = [
  "agents:invoke", "runs:read", "runs:write", "sessions:read", "sessions:write", "fleet:read",
  "fleet:write", "tools:read", "tools:execute", "skills:read", "approvals:read", "audit:read",
  "budgets:read", "workflows:read", "workflows:run", "metrics:read", "human", "admin", "*"];

const MEANINGS = {
  "agents:invoke": "have agents do things", "runs:read": "see runs", "runs:write": "begin, fork "
  + "and cancel runs", "sessions:read": "see sessions", "sessions:write": "change sessions",
  "fleet:read": "see edges", "fleet:write": "invite, approve and revoke edges",
  "tools:read": "see tools and policies", "tools:execute": "run tools directly",
  "skills:read": "see skills", "approvals:read": "see what waits", human: "answer approvals and "
  + "questions, release stops: a person's own token only", "audit:read": "read the audit",
  "budgets:read": "see budgets", "workflows:read": "see workflows",
  "workflows:run": "run workflows", "metrics:read": "read metrics",
  admin: "everything but answering for a person", "*": "everything",
};

/** What a scope opens, by its name. */
export const meaningOf = (scope) => MEANINGS[scope] || "";
