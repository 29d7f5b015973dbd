-- What opens the board for a human: sessions, the links that sign in once, and identities at an OpenID provider.

create table if not exists switchboard.human_sessions (
    id           uuid        primary key default gen_random_uuid(),
    human_id     uuid        not null references switchboard.humans (id),
    token_id     uuid        references switchboard.operator_tokens (id),
    digest       bytea       not null unique check (octet_length(digest) = 32),
    how          text        not null check (how in ('token', 'link', 'oidc')),
    created_at   timestamptz not null default now(),
    last_seen_at timestamptz not null default now(),
    expires_at   timestamptz not null check (isfinite(expires_at)),
    check ((how = 'token') = (token_id is not null))
) with (fillfactor = 70);
create index if not exists human_sessions_human on switchboard.human_sessions (human_id);
create index if not exists human_sessions_token on switchboard.human_sessions (token_id);
comment on table  switchboard.human_sessions is 'Humans signed in to the board: SHA-256 of a secret that their browser holds. A session that is closed is deleted; one that is over is pruned.';
comment on column switchboard.human_sessions.id is 'Identity of the session.';
comment on column switchboard.human_sessions.human_id is 'Who is signed in, and as whom the session acts.';
comment on column switchboard.human_sessions.token_id is 'The operator token that opened it, with which it ends; NULL: something else opened it.';
comment on column switchboard.human_sessions.digest is 'SHA-256 of the session''s secret as text. The secret itself is stored nowhere.';
comment on column switchboard.human_sessions.how is 'What opened it: an operator token, a sign-in link, or an OpenID provider (oidc).';
comment on column switchboard.human_sessions.created_at is 'When it was opened.';
comment on column switchboard.human_sessions.last_seen_at is 'When it was last used, to the minute, or opened; unused for long, it is over.';
comment on column switchboard.human_sessions.expires_at is 'From then on it opens nothing, however much it is used.';

create table if not exists switchboard.sign_in_links (
    id         uuid        primary key default gen_random_uuid(),
    human_id   uuid        not null references switchboard.humans (id),
    digest     bytea       not null unique check (octet_length(digest) = 32),
    created_at timestamptz not null default now(),
    expires_at timestamptz not null check (isfinite(expires_at)),
    used_at    timestamptz
);
create index if not exists sign_in_links_human on switchboard.sign_in_links (human_id);
comment on table  switchboard.sign_in_links is 'Links that open one session each: SHA-256 of a code that was shown once. Pruned when they expire.';
comment on column switchboard.sign_in_links.id is 'Identity of the link.';
comment on column switchboard.sign_in_links.human_id is 'Whom it signs in.';
comment on column switchboard.sign_in_links.digest is 'SHA-256 of the code as text. The code itself is stored nowhere.';
comment on column switchboard.sign_in_links.created_at is 'When it was made.';
comment on column switchboard.sign_in_links.expires_at is 'From then on it opens nothing.';
comment on column switchboard.sign_in_links.used_at is 'When it opened its session, after which it opens nothing more; NULL: not yet.';

create table if not exists switchboard.human_identities (
    issuer     text        not null,
    subject    text        not null,
    human_id   uuid        not null references switchboard.humans (id),
    created_at timestamptz not null default now(),
    primary key (issuer, subject)
);
create index if not exists human_identities_human on switchboard.human_identities (human_id);
comment on table  switchboard.human_identities is 'Who a human is at an OpenID provider.';
comment on column switchboard.human_identities.issuer is 'The provider: its issuer, an https address, letter by letter.';
comment on column switchboard.human_identities.subject is 'What the provider calls the human (sub): unique there, never used again.';
comment on column switchboard.human_identities.human_id is 'Who that is here. A human may have several identities.';
comment on column switchboard.human_identities.created_at is 'When it was added.';
