// @ts-check
// The scopes of API tokens and their meanings.

import { lookup } from "../../dom.js";

/** All scopes; the widest are last. */
export const SCOPES = [
  "agents:invoke", "runs:read", "runs:write", "sessions:read", "sessions:write", "fleet:read",
  "fleet:write", "tools:read", "tools:execute", "skills:read", "approvals:read", "audit:read",
  "budgets:read", "workflows:read", "workflows:run", "metrics:read", "evolution:read",
  "evolution:write", "human", "admin", "*"];

const MEANINGS = lookup({
  "agents:invoke": "invoke agents", "runs:read": "see runs", "runs:write": "start, fork "
  + "and cancel runs", "sessions:read": "see sessions", "sessions:write": "change sessions",
  "fleet:read": "see edges", "fleet:write": "invite, approve and revoke edges",
  "tools:read": "see tools and policies", "tools:execute": "run tools directly",
  "skills:read": "see skills", "approvals:read": "see approvals and questions",
  human: "answer approvals and questions, release stops: only for a person's own token",
  "audit:read": "read the audit log",
  "budgets:read": "see budgets", "workflows:read": "see workflows",
  "workflows:run": "run workflows", "metrics:read": "read metrics",
  "evolution:read": "see genomes and evaluations",
  "evolution:write": "evaluate agents, and change genomes as a person",
  admin: "everything except `human`", "*": "everything",
});

/**
 * The meaning of a scope.
 * @param {string} scope
 */
export const meaningOf = (scope) => MEANINGS[scope] || "";
