-- What opens the REST interface and the command line for a human.

create table if not exists switchboard.operator_tokens (
    id           uuid        primary key default gen_random_uuid(),
    human_id     uuid        not null references switchboard.humans (id),
    name         text        not null,
    digest       bytea       not null unique check (octet_length(digest) = 32),
    created_at   timestamptz not null default now(),
    expires_at   timestamptz check (isfinite(expires_at)),
    revoked_at   timestamptz,
    last_used_at timestamptz
) with (fillfactor = 70);
create unique index if not exists operator_tokens_name on switchboard.operator_tokens (human_id, name) where revoked_at is null;
create index if not exists operator_tokens_human on switchboard.operator_tokens (human_id);
comment on table  switchboard.operator_tokens is 'Bearer tokens of humans: SHA-256 of a secret that was shown once. Revoked ones stay, as a record.';
comment on column switchboard.operator_tokens.id is 'Identity of the token.';
comment on column switchboard.operator_tokens.human_id is 'Whose it is, and as whom it acts.';
comment on column switchboard.operator_tokens.name is 'What it is for, in the words of who made it; unique among the human''s tokens that are not revoked.';
comment on column switchboard.operator_tokens.digest is 'SHA-256 of the token as text. The token itself is stored nowhere.';
comment on column switchboard.operator_tokens.created_at is 'When it was made.';
comment on column switchboard.operator_tokens.expires_at is 'From then on it opens nothing; NULL: never.';
comment on column switchboard.operator_tokens.revoked_at is 'When it was revoked, for good; NULL: not.';
comment on column switchboard.operator_tokens.last_used_at is 'When it was last used, to the minute; NULL: never.';
