-- What db/migrations make. Written by scripts/schema write; do not edit.

CREATE SCHEMA switchboard;

COMMENT ON SCHEMA switchboard IS 'Switchboard: a durable work queue for AI agents. Call its functions; its tables are private.';

CREATE TYPE switchboard.admission_state AS (
	policy_id uuid,
	queue text,
	status text,
	max_in_flight integer,
	in_flight integer,
	max_claims_per_window integer,
	used integer,
	window_start timestamp with time zone,
	window_end timestamp with time zone,
	next_eligible_at timestamp with time zone,
	exact boolean
);

COMMENT ON TYPE switchboard.admission_state IS 'A policy at an instant: its status (open, or the reason why claims are deferred) and what is used of its limits. All NULL: no policy.';

CREATE TYPE switchboard.todo AS (
	id uuid,
	endpoint_id uuid,
	queue text,
	state text,
	kind text,
	source text,
	title text,
	payload jsonb,
	assignee text,
	owner text,
	lease_expires_at timestamp with time zone,
	lease_token text,
	claimed_at timestamp with time zone,
	attempt integer,
	max_attempts integer,
	next_retry_at timestamp with time zone,
	dead_letter boolean,
	result jsonb,
	idempotency_key text,
	trust_mode text,
	verified boolean,
	ring_attempts integer,
	last_ringed_at timestamp with time zone,
	event_id uuid,
	created_at timestamp with time zone,
	updated_at timestamp with time zone,
	completed_at timestamp with time zone,
	claims integer,
	admission jsonb
);

COMMENT ON TYPE switchboard.todo IS 'A todo as callers see it; lease_token is set for the claimer only.';

CREATE TYPE switchboard.admitted AS (
	todo switchboard.todo,
	queue text,
	refused text
);

COMMENT ON TYPE switchboard.admitted IS 'Internal: a todo that a claim took past the policy of queue, or why that refused.';

CREATE TYPE switchboard.claim_terms AS (
	endpoint_id uuid,
	owner text,
	queues text[],
	lease_seconds integer,
	at timestamp with time zone,
	due_from timestamp with time zone,
	any_due boolean,
	any_assigned boolean,
	assigned_from timestamp with time zone,
	only_from timestamp with time zone,
	stalled text[],
	budgeted text[],
	busy text[],
	rooms jsonb
);

COMMENT ON TYPE switchboard.claim_terms IS 'Internal: the checked terms of one claim, as functions/claim passes them on.';

CREATE TYPE switchboard.created_todo AS (
	id uuid,
	endpoint_id uuid,
	queue text,
	state text,
	kind text,
	source text,
	title text,
	payload jsonb,
	assignee text,
	owner text,
	lease_expires_at timestamp with time zone,
	lease_token text,
	claimed_at timestamp with time zone,
	attempt integer,
	max_attempts integer,
	next_retry_at timestamp with time zone,
	dead_letter boolean,
	result jsonb,
	idempotency_key text,
	trust_mode text,
	verified boolean,
	ring_attempts integer,
	last_ringed_at timestamp with time zone,
	event_id uuid,
	created_at timestamp with time zone,
	updated_at timestamp with time zone,
	completed_at timestamp with time zone,
	claims integer,
	created boolean
);

COMMENT ON TYPE switchboard.created_todo IS 'A todo and whether this call created it.';

CREATE TYPE switchboard.todo_state AS ENUM (
    'pending',
    'claimed',
    'done',
    'failed'
);

COMMENT ON TYPE switchboard.todo_state IS 'The four states of SPEC-0003, Todo Lifecycle State Machine.';

CREATE DOMAIN switchboard.trust_mode AS text
	CONSTRAINT trust_mode_check CHECK ((VALUE = ANY (ARRAY['signed'::text, 'token'::text, 'open'::text, 'operator'::text, 'agent'::text, 'sql'::text])));

COMMENT ON DOMAIN switchboard.trust_mode IS 'How far the origin of a todo was verified. A domain, not a CHECK of the table: those run at every update.';

CREATE TABLE switchboard.endpoints (
    id uuid DEFAULT gen_random_uuid() NOT NULL,
    human_id uuid NOT NULL,
    slug text NOT NULL,
    queues text[] NOT NULL,
    verbs text[] NOT NULL,
    webhook_max integer DEFAULT 1 NOT NULL,
    webhook_source_types text[] NOT NULL,
    default_lease_seconds integer,
    retention_days integer,
    retention_rows bigint,
    expires_at timestamp with time zone,
    revoked_at timestamp with time zone,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    updated_at timestamp with time zone DEFAULT now() NOT NULL,
    due_from timestamp with time zone DEFAULT '1970-01-01 00:00:00+00'::timestamp with time zone NOT NULL,
    stalled_queues text[],
    CONSTRAINT endpoints_default_lease_seconds_check CHECK (((default_lease_seconds >= 60) AND (default_lease_seconds <= 86400))),
    CONSTRAINT endpoints_expires_at_check CHECK (isfinite(expires_at)),
    CONSTRAINT endpoints_queues_check CHECK (((cardinality(queues) >= 1) AND (cardinality(queues) <= 32))),
    CONSTRAINT endpoints_retention_days_check CHECK (((retention_days >= 1) AND (retention_days <= 36500))),
    CONSTRAINT endpoints_retention_rows_check CHECK ((retention_rows >= 0)),
    CONSTRAINT endpoints_revoked_at_check CHECK (isfinite(revoked_at)),
    CONSTRAINT endpoints_slug_check CHECK ((slug ~ '^[a-z0-9][a-z0-9-]{0,62}$'::text)),
    CONSTRAINT endpoints_webhook_max_check CHECK (((webhook_max >= 0) AND (webhook_max <= 1000)))
)
WITH (fillfactor='50');

COMMENT ON TABLE switchboard.endpoints IS 'A vended MCP endpoint: the tenant boundary of every todo (SPEC-0003, Endpoint Ownership).';

COMMENT ON COLUMN switchboard.endpoints.id IS 'Identity of the endpoint; first column of the key of every tenant table.';

COMMENT ON COLUMN switchboard.endpoints.human_id IS 'The human who owns it and is accountable for it.';

COMMENT ON COLUMN switchboard.endpoints.slug IS 'Its name in the URL /mcp/{slug}; unique, never used again.';

COMMENT ON COLUMN switchboard.endpoints.queues IS 'The granted queues, 1 to 32: todos exist and are claimed in these only.';

COMMENT ON COLUMN switchboard.endpoints.verbs IS 'The granted verbs, over MCP and for bound database logins alike.';

COMMENT ON COLUMN switchboard.endpoints.webhook_max IS 'How many webhook receivers it may have.';

COMMENT ON COLUMN switchboard.endpoints.webhook_source_types IS 'Which source types its receivers may have.';

COMMENT ON COLUMN switchboard.endpoints.default_lease_seconds IS 'Lease of a claim that names none, seconds, 60..86400; NULL: the setting of the installation.';

COMMENT ON COLUMN switchboard.endpoints.retention_days IS 'Days that terminal rows are kept; NULL: the setting of the installation.';

COMMENT ON COLUMN switchboard.endpoints.retention_rows IS 'Terminal todos kept; NULL: the setting of the installation.';

COMMENT ON COLUMN switchboard.endpoints.expires_at IS 'From then on the endpoint is inactive; NULL: never.';

COMMENT ON COLUMN switchboard.endpoints.revoked_at IS 'When it was revoked, for good; NULL: not.';

COMMENT ON COLUMN switchboard.endpoints.created_at IS 'When it was vended.';

COMMENT ON COLUMN switchboard.endpoints.updated_at IS 'When its grant last changed.';

COMMENT ON COLUMN switchboard.endpoints.due_from IS 'Hint for claims: no lease or backoff that ended before this is known to be waiting still (functions/claim).';

COMMENT ON COLUMN switchboard.endpoints.stalled_queues IS 'Queues that were nudged and have made no progress since: a claim in one of them notes it (functions/stall). NULL: none.';

CREATE TABLE switchboard.admission_policies (
    endpoint_id uuid NOT NULL,
    id uuid DEFAULT gen_random_uuid() NOT NULL,
    queue text NOT NULL,
    max_in_flight integer,
    max_claims_per_window integer,
    window_period text,
    window_tz text,
    window_start text,
    window_weekday text,
    charged bigint DEFAULT 0 NOT NULL,
    created_by_human_id uuid NOT NULL,
    updated_by_human_id uuid NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    updated_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT admission_policies_check CHECK (((max_in_flight IS NOT NULL) OR (max_claims_per_window IS NOT NULL))),
    CONSTRAINT admission_policies_check1 CHECK (((max_claims_per_window IS NULL) OR ((window_period IS NOT NULL) AND (window_tz IS NOT NULL) AND (window_start IS NOT NULL)))),
    CONSTRAINT admission_policies_check2 CHECK (((NOT (window_period IS DISTINCT FROM 'week'::text)) = (window_weekday IS NOT NULL))),
    CONSTRAINT admission_policies_max_claims_per_window_check CHECK (((max_claims_per_window >= 0) AND (max_claims_per_window <= 1000000))),
    CONSTRAINT admission_policies_max_in_flight_check CHECK (((max_in_flight >= 0) AND (max_in_flight <= 10000))),
    CONSTRAINT admission_policies_window_period_check CHECK ((window_period = ANY (ARRAY['hour'::text, 'day'::text, 'week'::text]))),
    CONSTRAINT admission_policies_window_start_check CHECK ((window_start ~ '^([01][0-9]|2[0-3]):[0-5][0-9]$'::text)),
    CONSTRAINT admission_policies_window_weekday_check CHECK ((window_weekday = ANY (ARRAY['Mon'::text, 'Tue'::text, 'Wed'::text, 'Thu'::text, 'Fri'::text, 'Sat'::text, 'Sun'::text])))
)
WITH (fillfactor='30', autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='1000');

COMMENT ON TABLE switchboard.admission_policies IS 'The budget of a queue of an endpoint: claims per window, claims in flight, or both. Its row is the gate that every claim in the queue passes.';

COMMENT ON COLUMN switchboard.admission_policies.endpoint_id IS 'The endpoint.';

COMMENT ON COLUMN switchboard.admission_policies.id IS 'Identity of the policy; windows and audit name it.';

COMMENT ON COLUMN switchboard.admission_policies.queue IS 'The queue of the endpoint.';

COMMENT ON COLUMN switchboard.admission_policies.max_in_flight IS 'At most so many todos held at once, lapsed leases that nobody took included; 0: paused; NULL: no bound.';

COMMENT ON COLUMN switchboard.admission_policies.max_claims_per_window IS 'At most so many claims in a window, retries and takeovers included; 0: paused; NULL: no bound.';

COMMENT ON COLUMN switchboard.admission_policies.window_period IS 'hour, day or week.';

COMMENT ON COLUMN switchboard.admission_policies.window_tz IS 'The zone whose local clock the window follows, as PostgreSQL spells it.';

COMMENT ON COLUMN switchboard.admission_policies.window_start IS 'Local time at which windows begin, HH:MM; of an hour only the minutes count.';

COMMENT ON COLUMN switchboard.admission_policies.window_weekday IS 'The day on which weeks begin, Mon to Sun; NULL for the other periods.';

COMMENT ON COLUMN switchboard.admission_policies.charged IS 'Claims admitted under this policy, ever. Every admitted claim writes it.';

COMMENT ON COLUMN switchboard.admission_policies.created_by_human_id IS 'The accountable human who made it.';

COMMENT ON COLUMN switchboard.admission_policies.updated_by_human_id IS 'The accountable human who last changed it.';

COMMENT ON COLUMN switchboard.admission_policies.created_at IS 'When it was made.';

COMMENT ON COLUMN switchboard.admission_policies.updated_at IS 'When it was last changed by somebody; claims do not count.';

CREATE TABLE switchboard.notify_hooks (
    endpoint_id uuid NOT NULL,
    id uuid DEFAULT gen_random_uuid() NOT NULL,
    url text NOT NULL,
    queues text[],
    sealed_secret bytea,
    previous_secret bytea,
    previous_valid_until timestamp with time zone,
    failures integer DEFAULT 0 NOT NULL,
    disabled_at timestamp with time zone,
    last_delivered_at timestamp with time zone,
    last_failed_at timestamp with time zone,
    last_status text,
    quota_full_at timestamp with time zone DEFAULT '1970-01-01 00:00:00+00'::timestamp with time zone NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT notify_hooks_disabled_at_check CHECK (isfinite(disabled_at)),
    CONSTRAINT notify_hooks_last_delivered_at_check CHECK (isfinite(last_delivered_at)),
    CONSTRAINT notify_hooks_last_failed_at_check CHECK (isfinite(last_failed_at)),
    CONSTRAINT notify_hooks_previous_valid_until_check CHECK (isfinite(previous_valid_until))
)
WITH (fillfactor='50');

COMMENT ON TABLE switchboard.notify_hooks IS 'URLs that are called when a todo becomes ready, for consumers that hold no session.';

COMMENT ON COLUMN switchboard.notify_hooks.endpoint_id IS 'The endpoint whose todos it is about.';

COMMENT ON COLUMN switchboard.notify_hooks.id IS 'Identity of the hook.';

COMMENT ON COLUMN switchboard.notify_hooks.url IS 'Where the call goes; vetted by the shell when it is made and again before every attempt.';

COMMENT ON COLUMN switchboard.notify_hooks.queues IS 'The queues it covers; NULL: all of the endpoint.';

COMMENT ON COLUMN switchboard.notify_hooks.sealed_secret IS 'The secret that signs its calls, sealed by the shell; NULL: the hook sends nothing.';

COMMENT ON COLUMN switchboard.notify_hooks.previous_secret IS 'The secret that a rotation replaced, sealed; calls are signed with both until previous_valid_until.';

COMMENT ON COLUMN switchboard.notify_hooks.previous_valid_until IS 'Until when the previous secret signs, too; NULL: never rotated.';

COMMENT ON COLUMN switchboard.notify_hooks.failures IS 'Deliveries that failed since the last one that succeeded.';

COMMENT ON COLUMN switchboard.notify_hooks.disabled_at IS 'When it was disabled after ten failed deliveries; NULL: enabled. Rotating its secret enables it again.';

COMMENT ON COLUMN switchboard.notify_hooks.last_delivered_at IS 'When a call last succeeded.';

COMMENT ON COLUMN switchboard.notify_hooks.last_failed_at IS 'When an attempt last failed.';

COMMENT ON COLUMN switchboard.notify_hooks.last_status IS 'How the last attempt ended: 2xx, 3xx, 4xx, 5xx, timeout, unreachable, refused (the address is not allowed), unsealable.';

COMMENT ON COLUMN switchboard.notify_hooks.quota_full_at IS 'When its quota of calls will be whole again (120 a minute).';

COMMENT ON COLUMN switchboard.notify_hooks.created_at IS 'When it was made.';

CREATE TABLE switchboard.operator_tokens (
    id uuid DEFAULT gen_random_uuid() NOT NULL,
    human_id uuid NOT NULL,
    name text NOT NULL,
    digest bytea NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    expires_at timestamp with time zone,
    revoked_at timestamp with time zone,
    last_used_at timestamp with time zone,
    CONSTRAINT operator_tokens_digest_check CHECK ((octet_length(digest) = 32)),
    CONSTRAINT operator_tokens_expires_at_check CHECK (isfinite(expires_at))
)
WITH (fillfactor='70');

COMMENT ON TABLE switchboard.operator_tokens IS 'Bearer tokens of humans: SHA-256 of a secret that was shown once. Revoked ones stay, as a record.';

COMMENT ON COLUMN switchboard.operator_tokens.id IS 'Identity of the token.';

COMMENT ON COLUMN switchboard.operator_tokens.human_id IS 'Whose it is, and as whom it acts.';

COMMENT ON COLUMN switchboard.operator_tokens.name IS 'What it is for, in the words of who made it; unique among the human''s tokens that are not revoked.';

COMMENT ON COLUMN switchboard.operator_tokens.digest IS 'SHA-256 of the token as text. The token itself is stored nowhere.';

COMMENT ON COLUMN switchboard.operator_tokens.created_at IS 'When it was made.';

COMMENT ON COLUMN switchboard.operator_tokens.expires_at IS 'From then on it opens nothing; NULL: never.';

COMMENT ON COLUMN switchboard.operator_tokens.revoked_at IS 'When it was revoked, for good; NULL: not.';

COMMENT ON COLUMN switchboard.operator_tokens.last_used_at IS 'When it was last used, to the minute; NULL: never.';

CREATE TABLE switchboard.endpoint_webhooks (
    endpoint_id uuid NOT NULL,
    id uuid DEFAULT gen_random_uuid() NOT NULL,
    source_type text NOT NULL,
    target_queue text NOT NULL,
    trust_mode text NOT NULL,
    token_digest bytea NOT NULL,
    sealed_secret bytea NOT NULL,
    previous_token_digest bytea,
    previous_secret bytea,
    previous_valid_until timestamp with time zone,
    held boolean DEFAULT false NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT endpoint_webhooks_previous_token_digest_check CHECK ((octet_length(previous_token_digest) = 32)),
    CONSTRAINT endpoint_webhooks_previous_valid_until_check CHECK (isfinite(previous_valid_until)),
    CONSTRAINT endpoint_webhooks_token_digest_check CHECK ((octet_length(token_digest) = 32))
);

COMMENT ON TABLE switchboard.endpoint_webhooks IS 'Receivers: a URL with a token, the scheme by which its deliveries are verified, and the queue they go to.';

COMMENT ON COLUMN switchboard.endpoint_webhooks.endpoint_id IS 'The endpoint that owns the receiver.';

COMMENT ON COLUMN switchboard.endpoint_webhooks.id IS 'Identity of the receiver; first part of its deliveries'' idempotency keys.';

COMMENT ON COLUMN switchboard.endpoint_webhooks.source_type IS 'The sender''s scheme: one of source_types().';

COMMENT ON COLUMN switchboard.endpoint_webhooks.target_queue IS 'The queue its todos go to, on every target.';

COMMENT ON COLUMN switchboard.endpoint_webhooks.trust_mode IS 'Trust of its deliveries, derived from the source type.';

COMMENT ON COLUMN switchboard.endpoint_webhooks.token_digest IS 'SHA-256 of the token in its URL.';

COMMENT ON COLUMN switchboard.endpoint_webhooks.sealed_secret IS 'The signing secret, sealed by the shell; meaningless where the type signs nothing.';

COMMENT ON COLUMN switchboard.endpoint_webhooks.previous_token_digest IS 'SHA-256 of the token that a rotation replaced (types that sign nothing).';

COMMENT ON COLUMN switchboard.endpoint_webhooks.previous_secret IS 'The secret that a rotation replaced, sealed (types that sign).';

COMMENT ON COLUMN switchboard.endpoint_webhooks.previous_valid_until IS 'Until when the previous token or secret is accepted, too; NULL: never rotated.';

COMMENT ON COLUMN switchboard.endpoint_webhooks.held IS 'Whether an operator holds its deliveries in quarantine.';

COMMENT ON COLUMN switchboard.endpoint_webhooks.created_at IS 'When it was made.';

CREATE TABLE switchboard.todos (
    endpoint_id uuid NOT NULL,
    id uuid NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    updated_at timestamp with time zone DEFAULT now() NOT NULL,
    claimed_at timestamp with time zone,
    due_at timestamp with time zone,
    completed_at timestamp with time zone,
    last_ringed_at timestamp with time zone,
    attempt integer DEFAULT 0 NOT NULL,
    max_attempts integer DEFAULT 5 NOT NULL,
    claims integer DEFAULT 0 NOT NULL,
    lease_seconds integer,
    ring_attempts integer DEFAULT 0 NOT NULL,
    event_id uuid,
    state switchboard.todo_state DEFAULT 'pending'::switchboard.todo_state NOT NULL,
    queue text NOT NULL,
    owner text,
    lease_token text,
    assignee text,
    kind text,
    source text,
    trust_mode switchboard.trust_mode NOT NULL,
    title text NOT NULL,
    idempotency_key text,
    payload jsonb DEFAULT '{}'::jsonb NOT NULL,
    result jsonb
)
WITH (fillfactor='80', autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_insert_scale_factor='0.05', autovacuum_analyze_scale_factor='0.05');

COMMENT ON TABLE switchboard.todos IS 'The durable unit of work (SPEC-0003). Written by the functions of this schema only; docs/states.md has the transitions.';

COMMENT ON COLUMN switchboard.todos.endpoint_id IS 'The endpoint that owns the todo for its whole life.';

COMMENT ON COLUMN switchboard.todos.id IS 'Time-ordered (version 7): order by id is order by created_at, id.';

COMMENT ON COLUMN switchboard.todos.created_at IS 'When it was created; claims take the oldest first.';

COMMENT ON COLUMN switchboard.todos.updated_at IS 'When a transition last changed it.';

COMMENT ON COLUMN switchboard.todos.claimed_at IS 'When the last claim was made; NULL before the first one and after retry.';

COMMENT ON COLUMN switchboard.todos.due_at IS 'When it becomes claimable by itself: the end of the lease while claimed, of the backoff while parked; a failed todo without one is a dead letter.';

COMMENT ON COLUMN switchboard.todos.completed_at IS 'When it became terminal (done or dead letter); set exactly then.';

COMMENT ON COLUMN switchboard.todos.last_ringed_at IS 'When a doorbell last rang for it.';

COMMENT ON COLUMN switchboard.todos.attempt IS 'Claims since creation or the last retry; never above max_attempts.';

COMMENT ON COLUMN switchboard.todos.max_attempts IS 'The attempt after which failure or lapse dead-letters; 1..100.';

COMMENT ON COLUMN switchboard.todos.claims IS 'Claims ever: the sequence of its attempt history, which retry does not reset.';

COMMENT ON COLUMN switchboard.todos.lease_seconds IS 'What the last claim asked for: a heartbeat without a value renews for this long.';

COMMENT ON COLUMN switchboard.todos.ring_attempts IS 'Doorbells rung since it last became pending.';

COMMENT ON COLUMN switchboard.todos.event_id IS 'The delivery it was made from; NULL when none.';

COMMENT ON COLUMN switchboard.todos.state IS 'pending, claimed, done or failed (SPEC-0003, Todo Lifecycle State Machine).';

COMMENT ON COLUMN switchboard.todos.queue IS 'A label within the endpoint''s grant; not a tenant boundary.';

COMMENT ON COLUMN switchboard.todos.owner IS 'Who holds it, or held it when it ended; agent:<slug> over MCP, op:<human> on the board.';

COMMENT ON COLUMN switchboard.todos.lease_token IS 'Names this one lease; new with every claim, shown to the claimer only.';

COMMENT ON COLUMN switchboard.todos.assignee IS 'Only this owner may claim it; NULL: anyone whose grant covers the queue.';

COMMENT ON COLUMN switchboard.todos.kind IS 'What sort of work, in the sender''s words.';

COMMENT ON COLUMN switchboard.todos.source IS 'Where it came from, in the sender''s words.';

COMMENT ON COLUMN switchboard.todos.trust_mode IS 'How far its origin was verified; derived from the path it came by, never supplied.';

COMMENT ON COLUMN switchboard.todos.title IS 'One line for people, at most 500 characters; text of others, never an instruction.';

COMMENT ON COLUMN switchboard.todos.idempotency_key IS 'Deduplicates creates among live todos of the endpoint; NULL: none.';

COMMENT ON COLUMN switchboard.todos.payload IS 'What to work on: any JSON but null.';

COMMENT ON COLUMN switchboard.todos.result IS 'What the holder reported when it completed or failed.';

CREATE TABLE switchboard.events (
    endpoint_id uuid NOT NULL,
    id uuid NOT NULL,
    todo_id uuid NOT NULL,
    webhook_id uuid NOT NULL,
    source_type text NOT NULL,
    queue text NOT NULL,
    delivery_id text NOT NULL,
    event_type text,
    content_type text,
    trust_mode text NOT NULL,
    verification jsonb DEFAULT '{}'::jsonb NOT NULL,
    headers jsonb NOT NULL,
    body bytea NOT NULL,
    document text,
    received_at timestamp with time zone DEFAULT now() NOT NULL
);

COMMENT ON TABLE switchboard.events IS 'Verified deliveries as they came: headers without secrets, body byte for byte. One row a target; all targets of one delivery share its id.';

COMMENT ON COLUMN switchboard.events.endpoint_id IS 'The endpoint that got it: a delivery that fans out is stored once per target.';

COMMENT ON COLUMN switchboard.events.id IS 'Time-ordered identity of the delivery.';

COMMENT ON COLUMN switchboard.events.todo_id IS 'The todo that was made of it when it came; replays are in webhook_audit.';

COMMENT ON COLUMN switchboard.events.webhook_id IS 'The receiver it came through; it may be deleted since.';

COMMENT ON COLUMN switchboard.events.source_type IS 'The receiver''s source type.';

COMMENT ON COLUMN switchboard.events.queue IS 'The queue that the delivery was meant for, also when it is held in quarantine.';

COMMENT ON COLUMN switchboard.events.delivery_id IS 'The sender''s delivery id (its SHA-256 when longer than 256 bytes), or the SHA-256 of the body, in hex.';

COMMENT ON COLUMN switchboard.events.event_type IS 'The sender''s event name, for example pull_request.';

COMMENT ON COLUMN switchboard.events.content_type IS 'Content-Type of the request.';

COMMENT ON COLUMN switchboard.events.trust_mode IS 'Trust of the delivery.';

COMMENT ON COLUMN switchboard.events.verification IS 'How it was verified: scheme, which secret fitted (current or previous), the time that was signed.';

COMMENT ON COLUMN switchboard.events.headers IS 'Request headers with every secret redacted.';

COMMENT ON COLUMN switchboard.events.body IS 'The body as received.';

COMMENT ON COLUMN switchboard.events.document IS 'The JSON text to read where it is not the body itself: the field of a form-encoded one; NULL: the body.';

COMMENT ON COLUMN switchboard.events.received_at IS 'When it was stored.';

CREATE TABLE switchboard.queue_stall_nudges (
    endpoint_id uuid NOT NULL,
    queue text NOT NULL,
    nudges integer NOT NULL,
    last_nudged_at timestamp with time zone NOT NULL,
    progressed_at timestamp with time zone,
    CONSTRAINT queue_stall_nudges_last_nudged_at_check CHECK (isfinite(last_nudged_at)),
    CONSTRAINT queue_stall_nudges_nudges_check CHECK (((nudges >= 1) AND (nudges <= 5))),
    CONSTRAINT queue_stall_nudges_progressed_at_check CHECK (isfinite(progressed_at))
)
WITH (fillfactor='50');

COMMENT ON TABLE switchboard.queue_stall_nudges IS 'The nudge ledger (SPEC-0038): which queues were nudged, how often since they made progress, and when.';

COMMENT ON COLUMN switchboard.queue_stall_nudges.endpoint_id IS 'The endpoint.';

COMMENT ON COLUMN switchboard.queue_stall_nudges.queue IS 'Its queue.';

COMMENT ON COLUMN switchboard.queue_stall_nudges.nudges IS 'Nudges since the queue last made progress, the last one included; 1 to 5.';

COMMENT ON COLUMN switchboard.queue_stall_nudges.last_nudged_at IS 'When it was last nudged.';

COMMENT ON COLUMN switchboard.queue_stall_nudges.progressed_at IS 'The first claim after the last nudge, as far as a claim noted it; NULL: none.';

CREATE TABLE switchboard.notify_deliveries (
    endpoint_id uuid NOT NULL,
    id uuid NOT NULL,
    hook_id uuid NOT NULL,
    todo_id uuid NOT NULL,
    queue text NOT NULL,
    reason text NOT NULL,
    attempts integer DEFAULT 0 NOT NULL,
    due_at timestamp with time zone,
    ended_at timestamp with time zone,
    outcome text,
    created_at timestamp with time zone DEFAULT now() NOT NULL
)
WITH (fillfactor='80', autovacuum_vacuum_scale_factor='0.02');

COMMENT ON TABLE switchboard.notify_deliveries IS 'The outbox: one row a call to make, written by the transaction that made the todo ready; its id is the call''s webhook-id.';

COMMENT ON COLUMN switchboard.notify_deliveries.endpoint_id IS 'The endpoint.';

COMMENT ON COLUMN switchboard.notify_deliveries.id IS 'Time-ordered identity; the same over all attempts.';

COMMENT ON COLUMN switchboard.notify_deliveries.hook_id IS 'The hook that is called.';

COMMENT ON COLUMN switchboard.notify_deliveries.todo_id IS 'The todo that is ready.';

COMMENT ON COLUMN switchboard.notify_deliveries.queue IS 'Its queue.';

COMMENT ON COLUMN switchboard.notify_deliveries.reason IS 'created, requeued, reopened or stalled.';

COMMENT ON COLUMN switchboard.notify_deliveries.attempts IS 'Attempts begun, at most 3.';

COMMENT ON COLUMN switchboard.notify_deliveries.due_at IS 'When the next attempt may begin; while one runs, when it counts as lost. NULL: it has ended.';

COMMENT ON COLUMN switchboard.notify_deliveries.ended_at IS 'When it ended.';

COMMENT ON COLUMN switchboard.notify_deliveries.outcome IS 'delivered, failed, moot (the todo was no longer pending) or dropped (its hook was disabled).';

COMMENT ON COLUMN switchboard.notify_deliveries.created_at IS 'When the todo became ready.';

CREATE TABLE switchboard.human_sessions (
    id uuid DEFAULT gen_random_uuid() NOT NULL,
    human_id uuid NOT NULL,
    token_id uuid,
    digest bytea NOT NULL,
    how text NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    last_seen_at timestamp with time zone DEFAULT now() NOT NULL,
    expires_at timestamp with time zone NOT NULL,
    CONSTRAINT human_sessions_check CHECK (((how = 'token'::text) = (token_id IS NOT NULL))),
    CONSTRAINT human_sessions_digest_check CHECK ((octet_length(digest) = 32)),
    CONSTRAINT human_sessions_expires_at_check CHECK (isfinite(expires_at)),
    CONSTRAINT human_sessions_how_check CHECK ((how = ANY (ARRAY['token'::text, 'link'::text, 'oidc'::text])))
)
WITH (fillfactor='70');

COMMENT ON TABLE switchboard.human_sessions IS 'Humans signed in to the board: SHA-256 of a secret that their browser holds. A session that is closed is deleted; one that is over is pruned.';

COMMENT ON COLUMN switchboard.human_sessions.id IS 'Identity of the session.';

COMMENT ON COLUMN switchboard.human_sessions.human_id IS 'Who is signed in, and as whom the session acts.';

COMMENT ON COLUMN switchboard.human_sessions.token_id IS 'The operator token that opened it, with which it ends; NULL: something else opened it.';

COMMENT ON COLUMN switchboard.human_sessions.digest IS 'SHA-256 of the session''s secret as text. The secret itself is stored nowhere.';

COMMENT ON COLUMN switchboard.human_sessions.how IS 'What opened it: an operator token, a sign-in link, or an OpenID provider (oidc).';

COMMENT ON COLUMN switchboard.human_sessions.created_at IS 'When it was opened.';

COMMENT ON COLUMN switchboard.human_sessions.last_seen_at IS 'When it was last used, to the minute, or opened; unused for long, it is over.';

COMMENT ON COLUMN switchboard.human_sessions.expires_at IS 'From then on it opens nothing, however much it is used.';

CREATE TABLE switchboard.admission_changes (
    endpoint_id uuid NOT NULL,
    changes bigint DEFAULT 0 NOT NULL
)
WITH (fillfactor='50');

COMMENT ON TABLE switchboard.admission_changes IS 'One row an endpoint, written with every change of one of its budgets: a claimer whose snapshot is older locks it, and fails instead of passing by a policy that it cannot see.';

COMMENT ON COLUMN switchboard.admission_changes.endpoint_id IS 'The endpoint.';

COMMENT ON COLUMN switchboard.admission_changes.changes IS 'How many changes there were.';

CREATE TABLE switchboard.admission_owed (
    endpoint_id uuid NOT NULL,
    queue text NOT NULL,
    id uuid DEFAULT gen_random_uuid() NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL
)
WITH (fillfactor='50', autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='500', vacuum_truncate='false');

COMMENT ON TABLE switchboard.admission_owed IS 'Queues that were shut by their budget since anybody was last told that they are open: a wake is owed when they reopen (functions/reopen).';

COMMENT ON COLUMN switchboard.admission_owed.endpoint_id IS 'The endpoint.';

COMMENT ON COLUMN switchboard.admission_owed.queue IS 'Its queue.';

COMMENT ON COLUMN switchboard.admission_owed.id IS 'Tells apart the rows that concurrent transactions wrote; no meaning of its own.';

COMMENT ON COLUMN switchboard.admission_owed.created_at IS 'Since when.';

CREATE TABLE switchboard.admission_policy_audit (
    endpoint_id uuid NOT NULL,
    id bigint NOT NULL,
    policy_id uuid NOT NULL,
    queue text NOT NULL,
    actor_human_id uuid NOT NULL,
    actor_endpoint_id uuid,
    action text NOT NULL,
    before jsonb,
    after jsonb,
    at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT admission_policy_audit_action_check CHECK ((action = ANY (ARRAY['create'::text, 'update'::text, 'delete'::text])))
);

COMMENT ON TABLE switchboard.admission_policy_audit IS 'Who changed which budget how; outlives the policy, and goes by the retention of the endpoint.';

COMMENT ON COLUMN switchboard.admission_policy_audit.endpoint_id IS 'The endpoint.';

COMMENT ON COLUMN switchboard.admission_policy_audit.id IS 'Order of the entries.';

COMMENT ON COLUMN switchboard.admission_policy_audit.policy_id IS 'The policy, which may be gone.';

COMMENT ON COLUMN switchboard.admission_policy_audit.queue IS 'Its queue.';

COMMENT ON COLUMN switchboard.admission_policy_audit.actor_human_id IS 'The accountable human: who did it, or who owns the endpoint whose agent did.';

COMMENT ON COLUMN switchboard.admission_policy_audit.actor_endpoint_id IS 'The endpoint whose agent, or whose database login, did it; NULL: the human did.';

COMMENT ON COLUMN switchboard.admission_policy_audit.action IS 'create, update or delete.';

COMMENT ON COLUMN switchboard.admission_policy_audit.before IS 'The policy before, as set_admission_policy takes it; NULL: there was none.';

COMMENT ON COLUMN switchboard.admission_policy_audit.after IS 'The policy after; NULL: there is none any more.';

COMMENT ON COLUMN switchboard.admission_policy_audit.at IS 'When.';

ALTER TABLE switchboard.admission_policy_audit ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME switchboard.admission_policy_audit_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE switchboard.admission_refusals (
    endpoint_id uuid NOT NULL,
    id bigint NOT NULL,
    queue text NOT NULL,
    reason text NOT NULL
)
WITH (autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='1000');

COMMENT ON TABLE switchboard.admission_refusals IS 'Claims that a budget refused, one row each until a sweep adds them to admission_totals: rows, since a counter would let callers wait for each other.';

COMMENT ON COLUMN switchboard.admission_refusals.endpoint_id IS 'The endpoint.';

COMMENT ON COLUMN switchboard.admission_refusals.id IS 'Order; no meaning of its own.';

COMMENT ON COLUMN switchboard.admission_refusals.queue IS 'The queue.';

COMMENT ON COLUMN switchboard.admission_refusals.reason IS 'window_exhausted, in_flight_full, paused or admission_unavailable.';

ALTER TABLE switchboard.admission_refusals ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME switchboard.admission_refusals_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE switchboard.admission_totals (
    endpoint_id uuid NOT NULL,
    queue text NOT NULL,
    kind text NOT NULL,
    total bigint NOT NULL
)
WITH (fillfactor='50');

COMMENT ON TABLE switchboard.admission_totals IS 'Counters that outlive what they were counted from: refusals that were folded, charges of policies that are gone.';

COMMENT ON COLUMN switchboard.admission_totals.endpoint_id IS 'The endpoint.';

COMMENT ON COLUMN switchboard.admission_totals.queue IS 'The queue.';

COMMENT ON COLUMN switchboard.admission_totals.kind IS 'charged, or the reason of refusals.';

COMMENT ON COLUMN switchboard.admission_totals.total IS 'How many; only ever grows.';

CREATE TABLE switchboard.admission_windows (
    endpoint_id uuid NOT NULL,
    policy_id uuid NOT NULL,
    window_start timestamp with time zone NOT NULL,
    used integer DEFAULT 0 NOT NULL,
    updated_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT admission_windows_used_check CHECK ((used >= 0))
)
WITH (fillfactor='30', autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='1000');

COMMENT ON TABLE switchboard.admission_windows IS 'How much of its budget a policy spent in each window; kept for 35 days.';

COMMENT ON COLUMN switchboard.admission_windows.endpoint_id IS 'The endpoint.';

COMMENT ON COLUMN switchboard.admission_windows.policy_id IS 'The policy.';

COMMENT ON COLUMN switchboard.admission_windows.window_start IS 'The instant at which the window began.';

COMMENT ON COLUMN switchboard.admission_windows.used IS 'Claims committed in it; never given back.';

COMMENT ON COLUMN switchboard.admission_windows.updated_at IS 'When it was last charged.';

CREATE TABLE switchboard.attempt_fold (
    singleton boolean DEFAULT true NOT NULL,
    folded_to xid8 DEFAULT '0'::xid8 NOT NULL,
    CONSTRAINT attempt_fold_singleton_check CHECK (singleton)
)
WITH (fillfactor='50');

COMMENT ON TABLE switchboard.attempt_fold IS 'One row: how far attempt_totals has counted.';

COMMENT ON COLUMN switchboard.attempt_fold.singleton IS 'Always true: keeps this table at one row.';

COMMENT ON COLUMN switchboard.attempt_fold.folded_to IS 'Attempts ended by transactions below this are in attempt_totals.';

CREATE TABLE switchboard.attempt_totals (
    endpoint_id uuid NOT NULL,
    queue text NOT NULL,
    outcome text NOT NULL,
    state text NOT NULL,
    attempt integer NOT NULL,
    total bigint NOT NULL
)
WITH (fillfactor='50');

COMMENT ON TABLE switchboard.attempt_totals IS 'Ended attempts counted so far; what lies at or beyond attempt_fold is added by the reader.';

COMMENT ON COLUMN switchboard.attempt_totals.endpoint_id IS 'The endpoint.';

COMMENT ON COLUMN switchboard.attempt_totals.queue IS 'The queue.';

COMMENT ON COLUMN switchboard.attempt_totals.outcome IS 'How the attempts ended.';

COMMENT ON COLUMN switchboard.attempt_totals.state IS 'The state the todos got by it.';

COMMENT ON COLUMN switchboard.attempt_totals.attempt IS 'The attempt counter they ended with.';

COMMENT ON COLUMN switchboard.attempt_totals.total IS 'How many; only ever grows.';

CREATE TABLE switchboard.created_fold (
    singleton boolean DEFAULT true NOT NULL,
    folded_to uuid DEFAULT '00000000-0000-0000-0000-000000000000'::uuid NOT NULL,
    next_to uuid DEFAULT '00000000-0000-0000-0000-000000000000'::uuid NOT NULL,
    next_xid xid8 DEFAULT '0'::xid8 NOT NULL,
    CONSTRAINT created_fold_singleton_check CHECK (singleton)
)
WITH (fillfactor='50');

COMMENT ON TABLE switchboard.created_fold IS 'One row: how far created_totals has counted.';

COMMENT ON COLUMN switchboard.created_fold.singleton IS 'Always true: keeps this table at one row.';

COMMENT ON COLUMN switchboard.created_fold.folded_to IS 'Todos with smaller ids are in created_totals.';

COMMENT ON COLUMN switchboard.created_fold.next_to IS 'Where the next fold will get to.';

COMMENT ON COLUMN switchboard.created_fold.next_xid IS 'Once all transactions below this are over, nobody makes a todo below next_to any more.';

CREATE TABLE switchboard.created_totals (
    endpoint_id uuid NOT NULL,
    queue text NOT NULL,
    source text NOT NULL,
    total bigint NOT NULL
)
WITH (fillfactor='50');

COMMENT ON TABLE switchboard.created_totals IS 'Todos created so far; those from created_fold on are added by the reader.';

COMMENT ON COLUMN switchboard.created_totals.endpoint_id IS 'The endpoint.';

COMMENT ON COLUMN switchboard.created_totals.queue IS 'The queue.';

COMMENT ON COLUMN switchboard.created_totals.source IS 'Where they came from: a source type, or agent, operator, sql, other.';

COMMENT ON COLUMN switchboard.created_totals.total IS 'How many; only ever grows.';

CREATE TABLE switchboard.credentials (
    endpoint_id uuid NOT NULL,
    id uuid DEFAULT gen_random_uuid() NOT NULL,
    digest bytea NOT NULL,
    expires_at timestamp with time zone,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT credentials_digest_check CHECK ((octet_length(digest) = 32)),
    CONSTRAINT credentials_expires_at_check CHECK (isfinite(expires_at))
);

COMMENT ON TABLE switchboard.credentials IS 'What opens an endpoint: SHA-256 of a secret that was shown once. Rotation deletes, or dates, the old ones.';

COMMENT ON COLUMN switchboard.credentials.endpoint_id IS 'The endpoint it opens.';

COMMENT ON COLUMN switchboard.credentials.id IS 'Identity of the credential; sessions are bound to it.';

COMMENT ON COLUMN switchboard.credentials.digest IS 'SHA-256 of the credential as text. The credential itself is stored nowhere.';

COMMENT ON COLUMN switchboard.credentials.expires_at IS 'End of the grace after a rotation; NULL: valid until rotated.';

COMMENT ON COLUMN switchboard.credentials.created_at IS 'When it was made.';

CREATE TABLE switchboard.delivery_totals (
    shard smallint NOT NULL,
    provider text NOT NULL,
    trust_mode text NOT NULL,
    verdict text NOT NULL,
    reason text NOT NULL,
    total bigint NOT NULL
)
WITH (fillfactor='50', autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='500');

COMMENT ON TABLE switchboard.delivery_totals IS 'How many deliveries came, by what became of them. Sharded by session, so that deliveries do not queue for one row.';

COMMENT ON COLUMN switchboard.delivery_totals.shard IS 'Which part of the sum this is; no meaning of its own.';

COMMENT ON COLUMN switchboard.delivery_totals.provider IS 'Source type of the receiver; empty: there was none.';

COMMENT ON COLUMN switchboard.delivery_totals.trust_mode IS 'Trust of the receiver''s deliveries; empty: there was none.';

COMMENT ON COLUMN switchboard.delivery_totals.verdict IS 'accepted, duplicate, silent (answered, no work), no_target, refused or limited.';

COMMENT ON COLUMN switchboard.delivery_totals.reason IS 'Why one was refused, for example mismatch or stale; else empty.';

COMMENT ON COLUMN switchboard.delivery_totals.total IS 'How many; only ever grows.';

CREATE TABLE switchboard.endpoint_logins (
    endpoint_id uuid NOT NULL,
    login name NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL
);

COMMENT ON TABLE switchboard.endpoint_logins IS 'Database logins that are an endpoint: whatever such a login passes, it owns this one only.';

COMMENT ON COLUMN switchboard.endpoint_logins.endpoint_id IS 'The endpoint that the login is.';

COMMENT ON COLUMN switchboard.endpoint_logins.login IS 'The database login (session_user), a member of switchboard_worker.';

COMMENT ON COLUMN switchboard.endpoint_logins.created_at IS 'When it was bound.';

CREATE TABLE switchboard.endpoint_presence (
    endpoint_id uuid NOT NULL,
    gateway_id uuid NOT NULL,
    sessions jsonb NOT NULL,
    changed_at timestamp with time zone DEFAULT now() NOT NULL
)
WITH (fillfactor='50', autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='500');

COMMENT ON TABLE switchboard.endpoint_presence IS 'Which sessions an endpoint has in which server process; written when they change, not at every call.';

COMMENT ON COLUMN switchboard.endpoint_presence.endpoint_id IS 'The endpoint.';

COMMENT ON COLUMN switchboard.endpoint_presence.gateway_id IS 'The process.';

COMMENT ON COLUMN switchboard.endpoint_presence.sessions IS 'Array of {client (what it calls itself, or null), since, stream (whether it listens)}, the oldest first.';

COMMENT ON COLUMN switchboard.endpoint_presence.changed_at IS 'When they last changed.';

CREATE TABLE switchboard.endpoint_seen (
    endpoint_id uuid NOT NULL,
    via text NOT NULL,
    seen_at timestamp with time zone NOT NULL
)
WITH (fillfactor='50', autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='500');

COMMENT ON TABLE switchboard.endpoint_seen IS 'When the agent of an endpoint was last seen. One row a writer, so that a server never waits for a sweep.';

COMMENT ON COLUMN switchboard.endpoint_seen.endpoint_id IS 'The endpoint.';

COMMENT ON COLUMN switchboard.endpoint_seen.via IS 'session: a server saw it; attempt: the fold of the counters found an attempt that it ended.';

COMMENT ON COLUMN switchboard.endpoint_seen.seen_at IS 'When; of a session to the minute.';

CREATE TABLE switchboard.gateways (
    id uuid NOT NULL,
    started_at timestamp with time zone DEFAULT now() NOT NULL,
    seen_at timestamp with time zone DEFAULT now() NOT NULL
)
WITH (fillfactor='50', autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='500');

COMMENT ON TABLE switchboard.gateways IS 'The server processes that hold sessions; one that has not written for 45 seconds does not count (functions/presence).';

COMMENT ON COLUMN switchboard.gateways.id IS 'Identity of the process, new with every start.';

COMMENT ON COLUMN switchboard.gateways.started_at IS 'When it first wrote.';

COMMENT ON COLUMN switchboard.gateways.seen_at IS 'When it last wrote: every 15 seconds while it has sessions.';

CREATE TABLE switchboard.human_identities (
    issuer text NOT NULL,
    subject text NOT NULL,
    human_id uuid NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL
);

COMMENT ON TABLE switchboard.human_identities IS 'Who a human is at an OpenID provider.';

COMMENT ON COLUMN switchboard.human_identities.issuer IS 'The provider: its issuer, an https address, letter by letter.';

COMMENT ON COLUMN switchboard.human_identities.subject IS 'What the provider calls the human (sub): unique there, never used again.';

COMMENT ON COLUMN switchboard.human_identities.human_id IS 'Who that is here. A human may have several identities.';

COMMENT ON COLUMN switchboard.human_identities.created_at IS 'When it was added.';

CREATE TABLE switchboard.humans (
    id uuid DEFAULT gen_random_uuid() NOT NULL,
    name text NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT humans_name_check CHECK ((name ~ '^[^[:cntrl:]]{1,100}$'::text))
);

COMMENT ON TABLE switchboard.humans IS 'The people who own endpoints: a human is the tenant.';

COMMENT ON COLUMN switchboard.humans.id IS 'Identity of the human.';

COMMENT ON COLUMN switchboard.humans.name IS 'Unique name; the owner of what a human does on the board is op:<name>.';

COMMENT ON COLUMN switchboard.humans.created_at IS 'When the human was added.';

CREATE TABLE switchboard.metric_queues (
    slot integer NOT NULL,
    queue text NOT NULL,
    CONSTRAINT metric_queues_slot_check CHECK (((slot >= 1) AND (slot <= 50)))
);

COMMENT ON TABLE switchboard.metric_queues IS 'The queues that have a label of their own in the metrics, for ever: all others are __other__, so that no counter ever goes down.';

COMMENT ON COLUMN switchboard.metric_queues.slot IS 'One of the 50 places.';

COMMENT ON COLUMN switchboard.metric_queues.queue IS 'The queue''s name, whosever it is.';

CREATE TABLE switchboard.notify_totals (
    shard smallint NOT NULL,
    type text NOT NULL,
    outcome text NOT NULL,
    total bigint NOT NULL
)
WITH (fillfactor='50', autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='500');

COMMENT ON TABLE switchboard.notify_totals IS 'How many calls to hooks ended, and how. Sharded by session, as delivery_totals.';

COMMENT ON COLUMN switchboard.notify_totals.shard IS 'Which part of the sum this is; no meaning of its own.';

COMMENT ON COLUMN switchboard.notify_totals.type IS 'The type of the notification: todo.ready.';

COMMENT ON COLUMN switchboard.notify_totals.outcome IS 'delivered, failed, moot, dropped, or disabled (hooks, not calls).';

COMMENT ON COLUMN switchboard.notify_totals.total IS 'How many; only ever grows.';

CREATE TABLE switchboard.queue_marks (
    endpoint_id uuid NOT NULL,
    queue text NOT NULL,
    pending_from timestamp with time zone DEFAULT '1970-01-01 00:00:00+00'::timestamp with time zone NOT NULL,
    rung_from timestamp with time zone DEFAULT '1970-01-01 00:00:00+00'::timestamp with time zone NOT NULL,
    CONSTRAINT queue_marks_queue_check CHECK ((queue ~ '^[a-z0-9][a-z0-9._-]{0,62}$'::text))
)
WITH (fillfactor='20', autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='200');

COMMENT ON TABLE switchboard.queue_marks IS 'One row per queue ever granted, with the low-water mark of its pool (see functions/claim).';

COMMENT ON COLUMN switchboard.queue_marks.endpoint_id IS 'The endpoint.';

COMMENT ON COLUMN switchboard.queue_marks.queue IS 'The queue.';

COMMENT ON COLUMN switchboard.queue_marks.pending_from IS 'Claims look from here: nothing pending in the pool is known to be older.';

COMMENT ON COLUMN switchboard.queue_marks.rung_from IS 'Doorbells look from here: what was created before has rung once, as far as is known (functions/doorbell).';

CREATE TABLE switchboard.settings (
    singleton boolean DEFAULT true NOT NULL,
    default_lease_seconds integer DEFAULT 300 NOT NULL,
    retention_days integer DEFAULT 30 NOT NULL,
    retention_rows bigint DEFAULT 500000 NOT NULL,
    is_test boolean DEFAULT false NOT NULL,
    test_now timestamp with time zone,
    CONSTRAINT settings_check CHECK (((test_now IS NULL) OR is_test)),
    CONSTRAINT settings_default_lease_seconds_check CHECK (((default_lease_seconds >= 1) AND (default_lease_seconds <= 86400))),
    CONSTRAINT settings_retention_days_check CHECK (((retention_days >= 1) AND (retention_days <= 36500))),
    CONSTRAINT settings_retention_rows_check CHECK ((retention_rows >= 0)),
    CONSTRAINT settings_singleton_check CHECK (singleton),
    CONSTRAINT settings_test_now_check CHECK (isfinite(test_now))
);

COMMENT ON TABLE switchboard.settings IS 'One row: what holds for the whole installation.';

COMMENT ON COLUMN switchboard.settings.singleton IS 'Always true: keeps this table at one row.';

COMMENT ON COLUMN switchboard.settings.default_lease_seconds IS 'Lease of a claim when neither the call nor the endpoint names one; seconds, 1..86400.';

COMMENT ON COLUMN switchboard.settings.retention_days IS 'Days that terminal todos, attempts and events are kept unless the endpoint says otherwise.';

COMMENT ON COLUMN switchboard.settings.retention_rows IS 'Terminal todos kept per endpoint unless the endpoint says otherwise; the older of both bounds wins.';

COMMENT ON COLUMN switchboard.settings.is_test IS 'True in a test database only: then test_now is the clock of every session, servers included.';

COMMENT ON COLUMN switchboard.settings.test_now IS 'The stored test clock; NULL: real time.';

CREATE TABLE switchboard.sign_in_links (
    id uuid DEFAULT gen_random_uuid() NOT NULL,
    human_id uuid NOT NULL,
    digest bytea NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    expires_at timestamp with time zone NOT NULL,
    used_at timestamp with time zone,
    CONSTRAINT sign_in_links_digest_check CHECK ((octet_length(digest) = 32)),
    CONSTRAINT sign_in_links_expires_at_check CHECK (isfinite(expires_at))
);

COMMENT ON TABLE switchboard.sign_in_links IS 'Links that open one session each: SHA-256 of a code that was shown once. Pruned when they expire.';

COMMENT ON COLUMN switchboard.sign_in_links.id IS 'Identity of the link.';

COMMENT ON COLUMN switchboard.sign_in_links.human_id IS 'Whom it signs in.';

COMMENT ON COLUMN switchboard.sign_in_links.digest IS 'SHA-256 of the code as text. The code itself is stored nowhere.';

COMMENT ON COLUMN switchboard.sign_in_links.created_at IS 'When it was made.';

COMMENT ON COLUMN switchboard.sign_in_links.expires_at IS 'From then on it opens nothing.';

COMMENT ON COLUMN switchboard.sign_in_links.used_at IS 'When it opened its session, after which it opens nothing more; NULL: not yet.';

CREATE TABLE switchboard.sweeps (
    name text NOT NULL,
    last_run_at timestamp with time zone DEFAULT '1970-01-01 00:00:00+00'::timestamp with time zone NOT NULL,
    last_count bigint DEFAULT 0 NOT NULL,
    last_error text
)
WITH (fillfactor='50');

COMMENT ON TABLE switchboard.sweeps IS 'One row per sweep; its lock keeps two ticks from running one sweep at once.';

COMMENT ON COLUMN switchboard.sweeps.name IS 'The sweep''s name, in the order it runs.';

COMMENT ON COLUMN switchboard.sweeps.last_run_at IS 'When it last ran, by switchboard.now().';

COMMENT ON COLUMN switchboard.sweeps.last_count IS 'How many rows it then moved.';

COMMENT ON COLUMN switchboard.sweeps.last_error IS 'SQLSTATE of its last failure; NULL when the last run succeeded.';

CREATE TABLE switchboard.todo_attempts (
    endpoint_id uuid NOT NULL,
    todo_id uuid NOT NULL,
    seq integer NOT NULL,
    attempt integer NOT NULL,
    claimed_at timestamp with time zone NOT NULL,
    ended_at timestamp with time zone NOT NULL,
    xid xid8 DEFAULT pg_current_xact_id() NOT NULL,
    queue text NOT NULL,
    owner text NOT NULL,
    outcome text NOT NULL,
    state text NOT NULL,
    summary text
)
WITH (autovacuum_vacuum_insert_scale_factor='0.05');

COMMENT ON TABLE switchboard.todo_attempts IS 'One row per ended attempt, written by the transition that ended it.';

COMMENT ON COLUMN switchboard.todo_attempts.endpoint_id IS 'The endpoint of the todo.';

COMMENT ON COLUMN switchboard.todo_attempts.todo_id IS 'The todo.';

COMMENT ON COLUMN switchboard.todo_attempts.seq IS 'Which claim of the todo this was, from 1; retry does not reset it.';

COMMENT ON COLUMN switchboard.todo_attempts.attempt IS 'The todo''s attempt counter at that time; retry resets it.';

COMMENT ON COLUMN switchboard.todo_attempts.claimed_at IS 'When the attempt began.';

COMMENT ON COLUMN switchboard.todo_attempts.ended_at IS 'When it ended.';

COMMENT ON COLUMN switchboard.todo_attempts.xid IS 'The transaction that ended it: what the counters have not folded yet is told by this.';

COMMENT ON COLUMN switchboard.todo_attempts.queue IS 'The queue of the todo.';

COMMENT ON COLUMN switchboard.todo_attempts.owner IS 'Who held the lease.';

COMMENT ON COLUMN switchboard.todo_attempts.outcome IS 'done, failed, released, lapsed, overridden (an operator ended a lease of somebody else) or revoked.';

COMMENT ON COLUMN switchboard.todo_attempts.state IS 'The state the todo got by it.';

COMMENT ON COLUMN switchboard.todo_attempts.summary IS 'The first 200 characters of what the holder reported.';

CREATE TABLE switchboard.tool_register (
    name text NOT NULL,
    description text NOT NULL,
    input jsonb NOT NULL,
    required text[] NOT NULL,
    answer text NOT NULL,
    annotations jsonb NOT NULL,
    shell jsonb NOT NULL,
    "position" integer NOT NULL
);

COMMENT ON TABLE switchboard.tool_register IS 'A copy of switchboard.tools(), which is the source: building its rows costs more than a whole call.';

COMMENT ON COLUMN switchboard.tool_register.name IS 'The verb.';

COMMENT ON COLUMN switchboard.tool_register.description IS 'What an agent reads of it.';

COMMENT ON COLUMN switchboard.tool_register.input IS 'Its arguments, as JSON Schema properties.';

COMMENT ON COLUMN switchboard.tool_register.required IS 'The arguments that must be given.';

COMMENT ON COLUMN switchboard.tool_register.answer IS 'The field that its answer has.';

COMMENT ON COLUMN switchboard.tool_register.annotations IS 'MCP annotations.';

COMMENT ON COLUMN switchboard.tool_register.shell IS 'What the shell adds: secret, ingest_url.';

COMMENT ON COLUMN switchboard.tool_register."position" IS 'Its place in tools/list.';

CREATE TABLE switchboard.webhook_audit (
    endpoint_id uuid NOT NULL,
    id uuid NOT NULL,
    at timestamp with time zone DEFAULT now() NOT NULL,
    actor text NOT NULL,
    action text NOT NULL,
    webhook_id uuid NOT NULL,
    event_id uuid,
    todo_id uuid,
    detail jsonb DEFAULT '{}'::jsonb NOT NULL
);

COMMENT ON TABLE switchboard.webhook_audit IS 'Who did what to a receiver, its routes and its deliveries; outlives the receiver.';

COMMENT ON COLUMN switchboard.webhook_audit.endpoint_id IS 'The endpoint it happened on.';

COMMENT ON COLUMN switchboard.webhook_audit.id IS 'Time-ordered identity of the entry.';

COMMENT ON COLUMN switchboard.webhook_audit.at IS 'When.';

COMMENT ON COLUMN switchboard.webhook_audit.actor IS 'Who: agent:<slug>, op:<human>, or the database login.';

COMMENT ON COLUMN switchboard.webhook_audit.action IS 'created, rotated, deleted, routed, unrouted, held, unheld, released, discarded or replayed.';

COMMENT ON COLUMN switchboard.webhook_audit.webhook_id IS 'The receiver.';

COMMENT ON COLUMN switchboard.webhook_audit.event_id IS 'The delivery, where it is about one.';

COMMENT ON COLUMN switchboard.webhook_audit.todo_id IS 'The todo, where it is about one.';

COMMENT ON COLUMN switchboard.webhook_audit.detail IS 'What else is worth knowing: a route''s target, whether a replay made a todo.';

CREATE TABLE switchboard.webhook_routes (
    endpoint_id uuid NOT NULL,
    webhook_id uuid NOT NULL,
    target_endpoint_id uuid NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT webhook_routes_check CHECK ((target_endpoint_id <> endpoint_id))
);

COMMENT ON TABLE switchboard.webhook_routes IS 'Where else a receiver''s deliveries go: endpoints of the same human. The owner is a target without a row here.';

COMMENT ON COLUMN switchboard.webhook_routes.endpoint_id IS 'The endpoint that owns the receiver.';

COMMENT ON COLUMN switchboard.webhook_routes.webhook_id IS 'The receiver.';

COMMENT ON COLUMN switchboard.webhook_routes.target_endpoint_id IS 'The endpoint that gets an event and a todo of each delivery.';

COMMENT ON COLUMN switchboard.webhook_routes.created_at IS 'When the route was added.';

ALTER TABLE ONLY switchboard.admission_changes
    ADD CONSTRAINT admission_changes_pkey PRIMARY KEY (endpoint_id);

ALTER TABLE ONLY switchboard.admission_owed
    ADD CONSTRAINT admission_owed_pkey PRIMARY KEY (endpoint_id, queue, id);

ALTER TABLE ONLY switchboard.admission_policies
    ADD CONSTRAINT admission_policies_pkey PRIMARY KEY (endpoint_id, id);

ALTER TABLE ONLY switchboard.admission_policy_audit
    ADD CONSTRAINT admission_policy_audit_pkey PRIMARY KEY (endpoint_id, id);

ALTER TABLE ONLY switchboard.admission_refusals
    ADD CONSTRAINT admission_refusals_pkey PRIMARY KEY (endpoint_id, id);

ALTER TABLE ONLY switchboard.admission_totals
    ADD CONSTRAINT admission_totals_pkey PRIMARY KEY (endpoint_id, queue, kind);

ALTER TABLE ONLY switchboard.admission_windows
    ADD CONSTRAINT admission_windows_pkey PRIMARY KEY (endpoint_id, policy_id, window_start);

ALTER TABLE ONLY switchboard.attempt_fold
    ADD CONSTRAINT attempt_fold_pkey PRIMARY KEY (singleton);

ALTER TABLE ONLY switchboard.attempt_totals
    ADD CONSTRAINT attempt_totals_pkey PRIMARY KEY (endpoint_id, queue, outcome, state, attempt);

ALTER TABLE ONLY switchboard.created_fold
    ADD CONSTRAINT created_fold_pkey PRIMARY KEY (singleton);

ALTER TABLE ONLY switchboard.created_totals
    ADD CONSTRAINT created_totals_pkey PRIMARY KEY (endpoint_id, queue, source);

ALTER TABLE ONLY switchboard.credentials
    ADD CONSTRAINT credentials_digest_key UNIQUE (digest);

ALTER TABLE ONLY switchboard.credentials
    ADD CONSTRAINT credentials_pkey PRIMARY KEY (endpoint_id, id);

ALTER TABLE ONLY switchboard.delivery_totals
    ADD CONSTRAINT delivery_totals_pkey PRIMARY KEY (shard, provider, trust_mode, verdict, reason);

ALTER TABLE ONLY switchboard.endpoint_logins
    ADD CONSTRAINT endpoint_logins_login_key UNIQUE (login);

ALTER TABLE ONLY switchboard.endpoint_logins
    ADD CONSTRAINT endpoint_logins_pkey PRIMARY KEY (endpoint_id, login);

ALTER TABLE ONLY switchboard.endpoint_presence
    ADD CONSTRAINT endpoint_presence_pkey PRIMARY KEY (endpoint_id, gateway_id);

ALTER TABLE ONLY switchboard.endpoint_seen
    ADD CONSTRAINT endpoint_seen_pkey PRIMARY KEY (endpoint_id, via);

ALTER TABLE ONLY switchboard.endpoint_webhooks
    ADD CONSTRAINT endpoint_webhooks_pkey PRIMARY KEY (endpoint_id, id);

ALTER TABLE ONLY switchboard.endpoint_webhooks
    ADD CONSTRAINT endpoint_webhooks_previous_token_digest_key UNIQUE (previous_token_digest);

ALTER TABLE ONLY switchboard.endpoint_webhooks
    ADD CONSTRAINT endpoint_webhooks_token_digest_key UNIQUE (token_digest);

ALTER TABLE ONLY switchboard.endpoints
    ADD CONSTRAINT endpoints_pkey PRIMARY KEY (id);

ALTER TABLE ONLY switchboard.endpoints
    ADD CONSTRAINT endpoints_slug_key UNIQUE (slug);

ALTER TABLE ONLY switchboard.events
    ADD CONSTRAINT events_pkey PRIMARY KEY (endpoint_id, id);

ALTER TABLE ONLY switchboard.gateways
    ADD CONSTRAINT gateways_pkey PRIMARY KEY (id);

ALTER TABLE ONLY switchboard.human_identities
    ADD CONSTRAINT human_identities_pkey PRIMARY KEY (issuer, subject);

ALTER TABLE ONLY switchboard.human_sessions
    ADD CONSTRAINT human_sessions_digest_key UNIQUE (digest);

ALTER TABLE ONLY switchboard.human_sessions
    ADD CONSTRAINT human_sessions_pkey PRIMARY KEY (id);

ALTER TABLE ONLY switchboard.humans
    ADD CONSTRAINT humans_name_key UNIQUE (name);

ALTER TABLE ONLY switchboard.humans
    ADD CONSTRAINT humans_pkey PRIMARY KEY (id);

ALTER TABLE ONLY switchboard.metric_queues
    ADD CONSTRAINT metric_queues_pkey PRIMARY KEY (slot);

ALTER TABLE ONLY switchboard.metric_queues
    ADD CONSTRAINT metric_queues_queue_key UNIQUE (queue);

ALTER TABLE ONLY switchboard.notify_deliveries
    ADD CONSTRAINT notify_deliveries_pkey PRIMARY KEY (endpoint_id, id);

ALTER TABLE ONLY switchboard.notify_hooks
    ADD CONSTRAINT notify_hooks_pkey PRIMARY KEY (endpoint_id, id);

ALTER TABLE ONLY switchboard.notify_totals
    ADD CONSTRAINT notify_totals_pkey PRIMARY KEY (shard, type, outcome);

ALTER TABLE ONLY switchboard.operator_tokens
    ADD CONSTRAINT operator_tokens_digest_key UNIQUE (digest);

ALTER TABLE ONLY switchboard.operator_tokens
    ADD CONSTRAINT operator_tokens_pkey PRIMARY KEY (id);

ALTER TABLE ONLY switchboard.queue_marks
    ADD CONSTRAINT queue_marks_pkey PRIMARY KEY (endpoint_id, queue);

ALTER TABLE ONLY switchboard.queue_stall_nudges
    ADD CONSTRAINT queue_stall_nudges_pkey PRIMARY KEY (endpoint_id, queue);

ALTER TABLE ONLY switchboard.settings
    ADD CONSTRAINT settings_pkey PRIMARY KEY (singleton);

ALTER TABLE ONLY switchboard.sign_in_links
    ADD CONSTRAINT sign_in_links_digest_key UNIQUE (digest);

ALTER TABLE ONLY switchboard.sign_in_links
    ADD CONSTRAINT sign_in_links_pkey PRIMARY KEY (id);

ALTER TABLE ONLY switchboard.sweeps
    ADD CONSTRAINT sweeps_pkey PRIMARY KEY (name);

ALTER TABLE ONLY switchboard.todo_attempts
    ADD CONSTRAINT todo_attempts_pkey PRIMARY KEY (endpoint_id, todo_id, seq);

ALTER TABLE ONLY switchboard.todos
    ADD CONSTRAINT todos_pkey PRIMARY KEY (endpoint_id, id);

ALTER TABLE ONLY switchboard.tool_register
    ADD CONSTRAINT tool_register_pkey PRIMARY KEY (name);

ALTER TABLE ONLY switchboard.webhook_audit
    ADD CONSTRAINT webhook_audit_pkey PRIMARY KEY (endpoint_id, id);

ALTER TABLE ONLY switchboard.webhook_routes
    ADD CONSTRAINT webhook_routes_pkey PRIMARY KEY (endpoint_id, webhook_id, target_endpoint_id);

CREATE INDEX admission_policies_created_by ON switchboard.admission_policies USING btree (created_by_human_id);

CREATE INDEX admission_policies_updated_by ON switchboard.admission_policies USING btree (updated_by_human_id);

CREATE INDEX endpoint_presence_gateway ON switchboard.endpoint_presence USING btree (gateway_id);

CREATE INDEX endpoints_human ON switchboard.endpoints USING btree (human_id);

CREATE INDEX events_webhook ON switchboard.events USING btree (endpoint_id, webhook_id, id);

CREATE INDEX human_identities_human ON switchboard.human_identities USING btree (human_id);

CREATE INDEX human_sessions_human ON switchboard.human_sessions USING btree (human_id);

CREATE INDEX human_sessions_token ON switchboard.human_sessions USING btree (token_id);

CREATE INDEX idx_admission_audit_scope ON switchboard.admission_policy_audit USING btree (endpoint_id, queue, at DESC);

CREATE UNIQUE INDEX idx_admission_policies_endpoint_queue ON switchboard.admission_policies USING btree (endpoint_id, queue);

CREATE INDEX idx_todos_claimed_endpoint_queue ON switchboard.todos USING btree (endpoint_id, queue) WHERE (state = 'claimed'::switchboard.todo_state);

CREATE INDEX notify_deliveries_again ON switchboard.notify_deliveries USING btree (endpoint_id, hook_id, due_at) WHERE ((due_at IS NOT NULL) AND (attempts > 0));

CREATE INDEX notify_deliveries_due ON switchboard.notify_deliveries USING btree (endpoint_id, hook_id, due_at) WHERE (due_at IS NOT NULL);

CREATE INDEX notify_deliveries_hook ON switchboard.notify_deliveries USING btree (endpoint_id, hook_id, id);

CREATE INDEX operator_tokens_human ON switchboard.operator_tokens USING btree (human_id);

CREATE UNIQUE INDEX operator_tokens_name ON switchboard.operator_tokens USING btree (human_id, name) WHERE (revoked_at IS NULL);

CREATE INDEX sign_in_links_human ON switchboard.sign_in_links USING btree (human_id);

CREATE INDEX todo_attempts_xid ON switchboard.todo_attempts USING btree (xid);

CREATE INDEX todos_assigned ON switchboard.todos USING btree (endpoint_id, assignee, queue, created_at, id) WHERE ((state = 'pending'::switchboard.todo_state) AND (assignee IS NOT NULL));

CREATE INDEX todos_due ON switchboard.todos USING btree (endpoint_id, due_at) WHERE (due_at IS NOT NULL);

CREATE INDEX todos_ended_key ON switchboard.todos USING btree (endpoint_id, idempotency_key, id) WHERE ((completed_at IS NOT NULL) AND (idempotency_key IS NOT NULL));

CREATE INDEX todos_finished ON switchboard.todos USING btree (endpoint_id, queue, state, id) WHERE (completed_at IS NOT NULL);

CREATE UNIQUE INDEX todos_live_key ON switchboard.todos USING btree (endpoint_id, idempotency_key) WHERE ((completed_at IS NULL) AND (idempotency_key IS NOT NULL));

CREATE INDEX todos_pool ON switchboard.todos USING btree (endpoint_id, queue, created_at, id) WHERE ((state = 'pending'::switchboard.todo_state) AND (assignee IS NULL));

CREATE INDEX webhook_audit_event ON switchboard.webhook_audit USING btree (endpoint_id, event_id) WHERE (event_id IS NOT NULL);

CREATE INDEX webhook_audit_webhook ON switchboard.webhook_audit USING btree (endpoint_id, webhook_id, id);

CREATE INDEX webhook_routes_target ON switchboard.webhook_routes USING btree (target_endpoint_id);

ALTER TABLE ONLY switchboard.admission_changes
    ADD CONSTRAINT admission_changes_endpoint_id_fkey FOREIGN KEY (endpoint_id) REFERENCES switchboard.endpoints(id) ON DELETE CASCADE;

ALTER TABLE ONLY switchboard.admission_owed
    ADD CONSTRAINT admission_owed_endpoint_id_fkey FOREIGN KEY (endpoint_id) REFERENCES switchboard.endpoints(id) ON DELETE CASCADE;

ALTER TABLE ONLY switchboard.admission_policies
    ADD CONSTRAINT admission_policies_created_by_human_id_fkey FOREIGN KEY (created_by_human_id) REFERENCES switchboard.humans(id);

ALTER TABLE ONLY switchboard.admission_policies
    ADD CONSTRAINT admission_policies_endpoint_id_fkey FOREIGN KEY (endpoint_id) REFERENCES switchboard.endpoints(id) ON DELETE CASCADE;

ALTER TABLE ONLY switchboard.admission_policies
    ADD CONSTRAINT admission_policies_updated_by_human_id_fkey FOREIGN KEY (updated_by_human_id) REFERENCES switchboard.humans(id);

ALTER TABLE ONLY switchboard.admission_windows
    ADD CONSTRAINT admission_windows_endpoint_id_policy_id_fkey FOREIGN KEY (endpoint_id, policy_id) REFERENCES switchboard.admission_policies(endpoint_id, id) ON DELETE CASCADE;

ALTER TABLE ONLY switchboard.attempt_totals
    ADD CONSTRAINT attempt_totals_endpoint_id_fkey FOREIGN KEY (endpoint_id) REFERENCES switchboard.endpoints(id);

ALTER TABLE ONLY switchboard.credentials
    ADD CONSTRAINT credentials_endpoint_id_fkey FOREIGN KEY (endpoint_id) REFERENCES switchboard.endpoints(id);

ALTER TABLE ONLY switchboard.endpoint_logins
    ADD CONSTRAINT endpoint_logins_endpoint_id_fkey FOREIGN KEY (endpoint_id) REFERENCES switchboard.endpoints(id);

ALTER TABLE ONLY switchboard.endpoint_presence
    ADD CONSTRAINT endpoint_presence_endpoint_id_fkey FOREIGN KEY (endpoint_id) REFERENCES switchboard.endpoints(id);

ALTER TABLE ONLY switchboard.endpoint_presence
    ADD CONSTRAINT endpoint_presence_gateway_id_fkey FOREIGN KEY (gateway_id) REFERENCES switchboard.gateways(id) ON DELETE CASCADE;

ALTER TABLE ONLY switchboard.endpoint_seen
    ADD CONSTRAINT endpoint_seen_endpoint_id_fkey FOREIGN KEY (endpoint_id) REFERENCES switchboard.endpoints(id);

ALTER TABLE ONLY switchboard.endpoint_webhooks
    ADD CONSTRAINT endpoint_webhooks_endpoint_id_fkey FOREIGN KEY (endpoint_id) REFERENCES switchboard.endpoints(id);

ALTER TABLE ONLY switchboard.endpoints
    ADD CONSTRAINT endpoints_human_id_fkey FOREIGN KEY (human_id) REFERENCES switchboard.humans(id);

ALTER TABLE ONLY switchboard.events
    ADD CONSTRAINT events_endpoint_id_fkey FOREIGN KEY (endpoint_id) REFERENCES switchboard.endpoints(id);

ALTER TABLE ONLY switchboard.human_identities
    ADD CONSTRAINT human_identities_human_id_fkey FOREIGN KEY (human_id) REFERENCES switchboard.humans(id);

ALTER TABLE ONLY switchboard.human_sessions
    ADD CONSTRAINT human_sessions_human_id_fkey FOREIGN KEY (human_id) REFERENCES switchboard.humans(id);

ALTER TABLE ONLY switchboard.human_sessions
    ADD CONSTRAINT human_sessions_token_id_fkey FOREIGN KEY (token_id) REFERENCES switchboard.operator_tokens(id);

ALTER TABLE ONLY switchboard.notify_deliveries
    ADD CONSTRAINT notify_deliveries_endpoint_id_hook_id_fkey FOREIGN KEY (endpoint_id, hook_id) REFERENCES switchboard.notify_hooks(endpoint_id, id) ON DELETE CASCADE;

ALTER TABLE ONLY switchboard.notify_hooks
    ADD CONSTRAINT notify_hooks_endpoint_id_fkey FOREIGN KEY (endpoint_id) REFERENCES switchboard.endpoints(id);

ALTER TABLE ONLY switchboard.operator_tokens
    ADD CONSTRAINT operator_tokens_human_id_fkey FOREIGN KEY (human_id) REFERENCES switchboard.humans(id);

ALTER TABLE ONLY switchboard.queue_marks
    ADD CONSTRAINT queue_marks_endpoint_id_fkey FOREIGN KEY (endpoint_id) REFERENCES switchboard.endpoints(id);

ALTER TABLE ONLY switchboard.queue_stall_nudges
    ADD CONSTRAINT queue_stall_nudges_endpoint_id_fkey FOREIGN KEY (endpoint_id) REFERENCES switchboard.endpoints(id);

ALTER TABLE ONLY switchboard.sign_in_links
    ADD CONSTRAINT sign_in_links_human_id_fkey FOREIGN KEY (human_id) REFERENCES switchboard.humans(id);

ALTER TABLE ONLY switchboard.todos
    ADD CONSTRAINT todos_endpoint_id_fkey FOREIGN KEY (endpoint_id) REFERENCES switchboard.endpoints(id);

ALTER TABLE ONLY switchboard.webhook_audit
    ADD CONSTRAINT webhook_audit_endpoint_id_fkey FOREIGN KEY (endpoint_id) REFERENCES switchboard.endpoints(id);

ALTER TABLE ONLY switchboard.webhook_routes
    ADD CONSTRAINT webhook_routes_endpoint_id_webhook_id_fkey FOREIGN KEY (endpoint_id, webhook_id) REFERENCES switchboard.endpoint_webhooks(endpoint_id, id) ON DELETE CASCADE;

ALTER TABLE ONLY switchboard.webhook_routes
    ADD CONSTRAINT webhook_routes_target_endpoint_id_fkey FOREIGN KEY (target_endpoint_id) REFERENCES switchboard.endpoints(id);

