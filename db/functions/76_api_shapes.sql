-- The shapes of what REST answers, for the OpenAPI document and for who reads the register.
--
-- A shape is an object: field and type. A field whose name ends with ? may be left out, every other one is
-- there always. A type is text, uuid, time (RFC 3339), integer, number, boolean, object (any), any (any JSON),
-- =a,b,c (one of these texts) or the name of a shape; |null behind it: or null; [type]: a list of it. The field
-- "..." takes in the fields of the shape it names. api_operations() writes its answers so, too. The shell makes
-- JSON Schema of it; a test compares every answer that it can get with what stands here, closed: a field that is
-- not named here is a fault, although callers should expect that fields are added.

create or replace function switchboard.api_shapes()
returns table (name text, description text, shape jsonb)
language sql immutable set search_path = switchboard, pg_temp
as $$
    values
    ('Human', 'Who owns endpoints.', '{"id": "uuid", "name": "text"}'::jsonb),
    ('Todo', 'A todo. payload, result and idempotency_key only where one todo is asked for or claimed, else payload_bytes; lease_token never but from the claim itself.',
     '{"id": "uuid", "endpoint_id": "uuid", "endpoint": "text", "queue": "text", "state": "=pending,claimed,done,failed", "title": "text", "kind?": "text", "source?": "text",
       "assignee?": "text", "owner?": "text", "lease_expires_at?": "time", "lease_token?": "text", "attempt": "integer", "max_attempts": "integer", "next_retry_at?": "time",
       "dead_letter?": "boolean", "trust_mode": "text", "verified": "boolean", "event_id?": "uuid", "admission?": "Deferral", "created_at": "time", "completed_at?": "time",
       "payload?": "any", "payload_bytes?": "integer", "result?": "any", "idempotency_key?": "text"}'),
    ('Deferral', 'What the budget of its queue says about a pending todo.', '{"status": "=open,window_exhausted,in_flight_full,paused,admission_unavailable", "next_eligible_at?": "time", "exact?": "boolean"}'),
    ('Headroom', 'What is left of the budget after a claim.',
     '{"max_in_flight?": "integer", "in_flight?": "integer", "max_claims_per_window?": "integer", "used?": "integer", "remaining?": "integer", "window_resets_at?": "time"}'),
    ('Attempt', 'An attempt that ended.',
     '{"seq": "integer", "attempt": "integer", "owner": "text", "claimed_at": "time", "ended_at": "time", "outcome": "text", "state": "text", "summary?": "text"}'),
    ('Queue', 'A queue with what is in it: done ones ever, the others now.',
     '{"endpoint_id": "uuid", "endpoint": "text", "queue": "text", "granted": "boolean", "pending": "integer", "claimed": "integer", "parked": "integer", "dead": "integer",
       "done": "integer", "oldest_pending_seconds": "number|null"}'),
    ('Endpoint', 'An endpoint. What is null is as the installation has it, or never. last_seen_at: the newest sign of its agent.',
     '{"id": "uuid", "slug": "text", "queues": ["text"], "verbs": ["text"], "webhook_max": "integer", "webhook_source_types": ["text"], "default_lease_seconds": "integer|null",
       "retention_days": "integer|null", "retention_rows": "integer|null", "active": "boolean", "expires_at": "time|null", "revoked_at": "time|null", "created_at": "time", "updated_at": "time", "last_seen_at": "time|null"}'),
    ('Credential', 'A credential that opens the endpoint; what it is nobody can say any more.', '{"created_at": "time", "expires_at": "time|null"}'),
    ('Webhook', 'A receiver: a URL that deliveries are sent to. live: its own endpoint takes them; routes: how many others do.',
     '{"id": "uuid", "endpoint_id": "uuid", "endpoint": "text", "source_type": "text", "target_queue": "text", "trust_mode": "text", "held": "boolean", "live": "boolean",
       "routes": "integer", "previous_valid_until": "time|null", "created_at": "time"}'),
    ('Route', 'A target of a receiver; owner: the endpoint that it belongs to.', '{"target_endpoint_id": "uuid", "slug": "text", "owner": "boolean", "live": "boolean", "created_at": "time"}'),
    ('WebhookChange', 'What was done to a receiver, its routes or its deliveries, and by whom.',
     '{"at": "time", "actor": "text", "action": "text", "endpoint_id": "uuid", "event_id": "uuid|null", "todo_id": "uuid|null", "detail": "object"}'),
    ('EventRow', 'A delivery on one of its targets. todo_state and title are null when the todo is gone.',
     '{"id": "uuid", "endpoint_id": "uuid", "endpoint": "text", "webhook_id": "uuid", "source_type": "text", "event_type": "text|null", "delivery_id": "text", "trust_mode": "text",
       "verified": "boolean", "queue": "text", "bytes": "integer", "todo_id": "uuid", "todo_state": "text|null", "title": "text|null", "received_at": "time"}'),
    ('Event', 'A delivery.',
     '{"id": "uuid", "webhook_id": "uuid", "source_type": "text", "event_type": "text|null", "delivery_id": "text", "trust_mode": "text", "verified": "boolean", "verification": "object",
       "queue": "text", "content_type": "text|null", "bytes": "integer", "headers": "object", "received_at": "time", "todos": ["EventTodo"], "replays": ["Replay"]}'),
    ('EventTodo', 'A todo that was made of a delivery.', '{"id": "uuid", "endpoint_id": "uuid", "slug": "text", "queue": "text", "state": "text", "title": "text", "created_at": "time"}'),
    ('Replay', 'A replay of a delivery; created: it made a todo.', '{"actor": "text", "at": "time", "endpoint_id": "uuid", "todo_id": "uuid", "created": "boolean"}'),
    ('Replayed', 'Where a replay went.', '{"id": "uuid", "endpoint_id": "uuid", "queue": "text", "created": "boolean"}'),
    ('Hook', 'A notify hook. queues: null: all; health: off: disabled after ten failures in a row, unsigned: it has no secret and sends nothing.',
     '{"id": "uuid", "endpoint_id": "uuid", "endpoint": "text", "url": "text", "queues": ["text", null], "health": "=ok,failing,off,unsigned", "failures": "integer", "disabled_at": "time|null",
       "last_delivered_at": "time|null", "last_failed_at": "time|null", "last_status": "text|null", "created_at": "time", "waiting": "integer"}'),
    ('Policy', 'A budget as it was set.', '{"max_in_flight?": "integer", "max_claims_per_window?": "integer", "window?": "PolicyWindow"}'),
    ('PolicyWindow', 'The window of a budget.', '{"period": "=hour,day,week", "tz": "text", "start?": "text", "weekday?": "text"}'),
    ('Budget', 'The budget of a queue and how it stands; only scope, queue and policy (null) where there is none.',
     '{"scope": "text", "queue": "text", "policy": "Policy|null", "status?": "=open,window_exhausted,in_flight_full,paused,admission_unavailable", "used?": "integer",
       "max_claims_per_window?": "integer", "remaining?": "integer", "in_flight?": "integer", "max_in_flight?": "integer", "pending?": "integer", "window_started_at?": "time",
       "window_resets_at?": "time", "window_resets_local?": "text", "next_eligible_at?": "time", "exact?": "boolean", "charged?": "integer", "granted?": "boolean",
       "created_at?": "time", "updated_at?": "time", "updated_by?": "text"}'),
    ('Window', 'What was claimed in a window that has been.', '{"window_start": "time", "used": "integer"}'),
    ('BudgetChange', 'A change of a budget; endpoint: whose agent made it.', '{"at": "time", "action": "text", "human?": "text", "endpoint?": "text", "before": "Policy|null", "after": "Policy|null"}'),
    ('Token', 'An operator token, without the token itself.',
     '{"id": "uuid", "name": "text", "active": "boolean", "created_at": "time", "expires_at": "time|null", "revoked_at": "time|null", "last_used_at": "time|null"}'),
    ('Sweep', 'A sweep. last_error: the SQLSTATE with which its last run failed.', '{"name": "text", "last_run_at": "time|null", "last_count": "integer|null", "last_error": "text|null"}'),
    ('Stall', 'A queue that was nudged because nothing moved; progressed_at: a todo of it was claimed since.',
     '{"endpoint_id": "uuid", "endpoint": "text", "queue": "text", "nudges": "integer", "last_nudged_at": "time", "progressed_at": "time|null"}')
$$;
comment on function switchboard.api_shapes() is 'The shapes that answers of REST are made of, by name, as the head of this file says.';
