-- Who there is: settings of the installation, humans, the endpoints vended to them,
-- the credentials that open an endpoint, and the database logins bound to one.
-- Re-runnable: yoyo commits the change and its mark in two transactions.

create table if not exists switchboard.settings (
    singleton             boolean     primary key default true check (singleton),
    default_lease_seconds integer     not null default 300 check (default_lease_seconds between 1 and 86400),
    retention_days        integer     not null default 30 check (retention_days between 1 and 36500),
    retention_rows        bigint      not null default 500000 check (retention_rows >= 0),
    is_test               boolean     not null default false,
    test_now              timestamptz check (isfinite(test_now)),
    check (test_now is null or is_test)
);
insert into switchboard.settings default values on conflict do nothing;
comment on table  switchboard.settings is 'One row: what holds for the whole installation.';
comment on column switchboard.settings.singleton is 'Always true: keeps this table at one row.';
comment on column switchboard.settings.default_lease_seconds is 'Lease of a claim when neither the call nor the endpoint names one; seconds, 1..86400.';
comment on column switchboard.settings.retention_days is 'Days that terminal todos, attempts and events are kept unless the endpoint says otherwise.';
comment on column switchboard.settings.retention_rows is 'Terminal todos kept per endpoint unless the endpoint says otherwise; the older of both bounds wins.';
comment on column switchboard.settings.is_test is 'True in a test database only: then test_now is the clock of every session, servers included.';
comment on column switchboard.settings.test_now is 'The stored test clock; NULL: real time.';

create table if not exists switchboard.humans (
    id         uuid        primary key default gen_random_uuid(),
    name       text        not null unique check (name ~ '^[^[:cntrl:]]{1,100}$'),
    created_at timestamptz not null default now()
);
comment on table  switchboard.humans is 'The people who own endpoints: a human is the tenant.';
comment on column switchboard.humans.id is 'Identity of the human.';
comment on column switchboard.humans.name is 'Unique name; the owner of what a human does on the board is op:<name>.';
comment on column switchboard.humans.created_at is 'When the human was added.';

create table if not exists switchboard.endpoints (
    id                    uuid        primary key default gen_random_uuid(),
    human_id              uuid        not null references switchboard.humans (id),
    slug                  text        not null unique check (slug ~ '^[a-z0-9][a-z0-9-]{0,62}$'),
    queues                text[]      not null check (cardinality(queues) between 1 and 32),
    verbs                 text[]      not null,
    webhook_max           integer     not null default 1 check (webhook_max between 0 and 1000),
    webhook_source_types  text[]      not null,
    default_lease_seconds integer     check (default_lease_seconds between 60 and 86400),
    retention_days        integer     check (retention_days between 1 and 36500),
    retention_rows        bigint      check (retention_rows >= 0),
    expires_at            timestamptz check (isfinite(expires_at)),
    revoked_at            timestamptz check (isfinite(revoked_at)),
    created_at            timestamptz not null default now(),
    updated_at            timestamptz not null default now(),
    due_from              timestamptz not null default 'epoch'
) with (fillfactor = 50);
create index if not exists endpoints_human on switchboard.endpoints (human_id);
comment on table  switchboard.endpoints is 'A vended MCP endpoint: the tenant boundary of every todo (SPEC-0003, Endpoint Ownership).';
comment on column switchboard.endpoints.id is 'Identity of the endpoint; first column of the key of every tenant table.';
comment on column switchboard.endpoints.human_id is 'The human who owns it and is accountable for it.';
comment on column switchboard.endpoints.slug is 'Its name in the URL /mcp/{slug}; unique, never used again.';
comment on column switchboard.endpoints.queues is 'The granted queues, 1 to 32: todos exist and are claimed in these only.';
comment on column switchboard.endpoints.verbs is 'The granted verbs, over MCP and for bound database logins alike.';
comment on column switchboard.endpoints.webhook_max is 'How many webhook receivers it may have.';
comment on column switchboard.endpoints.webhook_source_types is 'Which source types its receivers may have.';
comment on column switchboard.endpoints.default_lease_seconds is 'Lease of a claim that names none, seconds, 60..86400; NULL: the setting of the installation.';
comment on column switchboard.endpoints.retention_days is 'Days that terminal rows are kept; NULL: the setting of the installation.';
comment on column switchboard.endpoints.retention_rows is 'Terminal todos kept; NULL: the setting of the installation.';
comment on column switchboard.endpoints.expires_at is 'From then on the endpoint is inactive; NULL: never.';
comment on column switchboard.endpoints.revoked_at is 'When it was revoked, for good; NULL: not.';
comment on column switchboard.endpoints.created_at is 'When it was vended.';
comment on column switchboard.endpoints.updated_at is 'When its grant last changed.';
comment on column switchboard.endpoints.due_from is 'Hint for claims: no lease or backoff that ended before this is known to be waiting still (functions/claim).';

create table if not exists switchboard.credentials (
    endpoint_id uuid        not null references switchboard.endpoints (id),
    id          uuid        not null default gen_random_uuid(),
    digest      bytea       not null unique check (octet_length(digest) = 32),
    expires_at  timestamptz check (isfinite(expires_at)),
    created_at  timestamptz not null default now(),
    primary key (endpoint_id, id)
);
comment on table  switchboard.credentials is 'What opens an endpoint: SHA-256 of a secret that was shown once. Rotation deletes, or dates, the old ones.';
comment on column switchboard.credentials.endpoint_id is 'The endpoint it opens.';
comment on column switchboard.credentials.id is 'Identity of the credential; sessions are bound to it.';
comment on column switchboard.credentials.digest is 'SHA-256 of the credential as text. The credential itself is stored nowhere.';
comment on column switchboard.credentials.expires_at is 'End of the grace after a rotation; NULL: valid until rotated.';
comment on column switchboard.credentials.created_at is 'When it was made.';

create table if not exists switchboard.endpoint_logins (
    endpoint_id uuid        not null references switchboard.endpoints (id),
    login       name        not null unique,
    created_at  timestamptz not null default now(),
    primary key (endpoint_id, login)
);
comment on table  switchboard.endpoint_logins is 'Database logins that are an endpoint: whatever such a login passes, it owns this one only.';
comment on column switchboard.endpoint_logins.endpoint_id is 'The endpoint that the login is.';
comment on column switchboard.endpoint_logins.login is 'The database login (session_user), a member of switchboard_worker.';
comment on column switchboard.endpoint_logins.created_at is 'When it was bound.';
