-- Signing in: how a human comes to a session of the board.
--
-- A session is opened by an operator token, by a link that works once, or by an identity that an OpenID
-- provider vouches for; nothing else opens one. Its secret is minted by the gateway, kept by the browser,
-- and stored as SHA-256 only, as tokens are; every sign-in gets a new one, so that a secret that was
-- planted before is worth nothing. identify_operator() knows sessions as it knows tokens, and nothing
-- caches it: what was closed acts no more, at once. A session is over 30 days after it was opened, 7 days
-- after it was last used, with the token that opened it, or when it is closed. A link is used up by the
-- update that dates it, so that of two who use it at once one is signed in. What can end sessions says so on
-- the channel switchboard_control (payload: sessions), for streams that are open.
-- Lock order: the link's row, or the token's, then sessions.

create or replace function switchboard.session_limits(out lasts interval, out idle interval, out at_once integer)
language sql immutable set search_path = switchboard, pg_temp
as $$
    select interval '30 days', interval '7 days', 100
$$;
comment on function switchboard.session_limits() is 'How long a session of the board lasts, after how long without use it is over, and how many a human may have at once.';

create or replace function switchboard.is_live_session(p_session switchboard.human_sessions, p_at timestamptz) returns boolean
language plpgsql stable set search_path = switchboard, pg_temp
as $$
begin
    return p_session.expires_at > p_at and p_session.last_seen_at > p_at - (select l.idle from session_limits() l)
        and (p_session.token_id is null or exists (
            select from operator_tokens t where t.id = p_session.token_id and is_active(t.revoked_at, t.expires_at, p_at)));
end $$;
comment on function switchboard.is_live_session(switchboard.human_sessions, timestamptz) is 'Whether the session opens anything at p_at: neither expired nor long unused, and its token, if one opened it, is still good. Reads operator_tokens.';

create or replace function switchboard.open_session(p_human_id uuid, p_token_id uuid, p_how text, p_session_digest bytea) returns jsonb
language plpgsql volatile set search_path = switchboard, pg_temp
as $$
declare
    v_now     timestamptz := clock();
    v_limits  record;
    v_session record;
begin
    if octet_length(p_session_digest) is distinct from 32 then
        perform refuse_argument('session_digest', 'must be a SHA-256');
    end if;
    select * into v_limits from session_limits();
    delete from human_sessions s where s.id in (
        select o.id from human_sessions o where o.human_id = p_human_id
        order by o.last_seen_at desc, o.created_at desc, o.id offset v_limits.at_once - 1);
    insert into human_sessions as s (human_id, token_id, digest, how, created_at, last_seen_at, expires_at)
    select p_human_id, p_token_id, p_session_digest, p_how, v_now, v_now,
           least(v_now + v_limits.lasts, (select t.expires_at from operator_tokens t where t.id = p_token_id))
    on conflict (digest) do nothing returning s.id, s.expires_at into v_session;
    if v_session.id is null then
        perform refuse('conflict', 'there is a session with that secret: mint a new one');
    end if;
    return jsonb_build_object('session_id', v_session.id, 'human_id', p_human_id, 'expires_at', v_session.expires_at,
                              'human', (select h.name from humans h where h.id = p_human_id));
end $$;
comment on function switchboard.open_session(uuid, uuid, text, bytea) is
'Opens a session of the human, p_how and with which token. p_session_digest: SHA-256 of a secret that was never used. Beyond 100 sessions of a human the ones unused longest are closed. Returns session_id, human_id, human, expires_at. Errors: invalid_argument, conflict. Reads humans, operator_tokens; writes human_sessions.';

create or replace function switchboard.open_session_by_token(p_token_digest bytea, p_session_digest bytea) returns jsonb
language plpgsql volatile security definer set search_path = switchboard, pg_temp
as $$
declare
    v_token record;
begin
    select t.id, t.human_id, t.last_used_at into v_token from operator_tokens t
    where t.digest = p_token_digest and is_active(t.revoked_at, t.expires_at, clock());
    if v_token.id is null then
        return null;
    end if;
    perform note_token_use(v_token.id, v_token.last_used_at);
    return open_session(v_token.human_id, v_token.id, 'token', p_session_digest);
end $$;
comment on function switchboard.open_session_by_token(bytea, bytea) is
'Signs in with an operator token; the session ends with it. p_token_digest, p_session_digest: SHA-256 of the token, and of the secret that the session is to have. Returns session_id, human_id, human, expires_at; NULL for a token that is unknown, expired or revoked alike. Errors: invalid_argument, conflict. Reads humans; writes human_sessions, operator_tokens.';

create or replace function switchboard.create_sign_in_link(p_human_id uuid, p_minutes integer default 10)
returns table (code text, expires_at timestamptz)
language plpgsql volatile security definer set search_path = switchboard, pg_temp
as $$
declare
    v_now  timestamptz := clock();
    v_code text := mint_secret('sbl_');
begin
    if p_minutes is null or p_minutes not between 1 and 1440 then
        perform refuse_argument('minutes', 'must be 1 to 1440');
    elsif not exists (select from humans h where h.id = p_human_id) then
        perform refuse('not_found', 'there is no such human: list_humans shows them');
    end if;
    return query insert into sign_in_links as l (human_id, digest, created_at, expires_at)
        values (p_human_id, sha256(convert_to(v_code, 'UTF8')), v_now, v_now + make_interval(mins => p_minutes))
        returning v_code, l.expires_at;
end $$;
comment on function switchboard.create_sign_in_link(uuid, integer) is
'Makes a code that signs the human in to the board, once, at the address /sign-in/{code}; it is returned this once. p_minutes: for how long, 1 to 1440. Errors: invalid_argument, not_found. Reads humans; writes sign_in_links.';

create or replace function switchboard.open_session_by_link(p_code_digest bytea, p_session_digest bytea) returns jsonb
language plpgsql volatile security definer set search_path = switchboard, pg_temp
as $$
declare
    v_human uuid;
begin
    update sign_in_links l set used_at = clock()
    where l.digest = p_code_digest and l.used_at is null and l.expires_at > clock() returning l.human_id into v_human;
    if v_human is null then
        return null;
    end if;
    return open_session(v_human, null, 'link', p_session_digest);
end $$;
comment on function switchboard.open_session_by_link(bytea, bytea) is
'Signs in with a link, which is used up. p_code_digest, p_session_digest: SHA-256 of its code, and of the secret that the session is to have. Returns session_id, human_id, human, expires_at; NULL for a link that is unknown, used or expired alike. Errors: invalid_argument, conflict. Reads humans; writes sign_in_links, human_sessions.';

create or replace function switchboard.open_session_by_identity(p_issuer text, p_subject text, p_session_digest bytea) returns jsonb
language plpgsql volatile security definer set search_path = switchboard, pg_temp
as $$
declare
    v_human uuid;
begin
    select i.human_id into v_human from human_identities i where i.issuer = p_issuer and i.subject = p_subject for key share;
    if v_human is null then
        return null;
    end if;
    return open_session(v_human, null, 'oidc', p_session_digest);
end $$;
comment on function switchboard.open_session_by_identity(text, text, bytea) is
'Signs in who an OpenID provider says it is: the gateway has verified that. p_issuer, p_subject: of the ID token; p_session_digest: SHA-256 of the secret that the session is to have. Returns session_id, human_id, human, expires_at; NULL for an identity that nobody here has. Errors: invalid_argument, conflict. Reads human_identities, humans; writes human_sessions.';

create or replace function switchboard.tell_sessions() returns void
language plpgsql volatile set search_path = switchboard, pg_temp
as $$
begin
    perform pg_notify('switchboard_control', 'sessions');
end $$;
comment on function switchboard.tell_sessions() is 'Says on switchboard_control that sessions of the board ended: who shows something to one looks again whether it still may.';

create or replace function switchboard.close_session(p_session_digest bytea) returns boolean
language plpgsql volatile security definer set search_path = switchboard, pg_temp
as $$
begin
    delete from human_sessions s where s.digest = p_session_digest;
    if not found then
        return false;
    end if;
    perform tell_sessions();
    return true;
end $$;
comment on function switchboard.close_session(bytea) is 'Signs out: the session opens nothing from now on. p_session_digest: SHA-256 of its secret. Returns whether there was one. Writes human_sessions; notifies switchboard_control.';

create or replace function switchboard.close_sessions(p_human_id uuid, p_session_id uuid default null) returns bigint
language plpgsql volatile security definer set search_path = switchboard, pg_temp
as $$
declare
    v_count bigint;
begin
    if not exists (select from humans h where h.id = p_human_id) then
        perform refuse('not_found', 'there is no such human: list_humans shows them');
    end if;
    delete from human_sessions s where s.human_id = p_human_id and (p_session_id is null or s.id = p_session_id);
    get diagnostics v_count = row_count;
    if v_count = 0 and p_session_id is not null then
        perform refuse('not_found', 'there is no such session: list_sessions shows them');
    end if;
    delete from sign_in_links l where l.human_id = p_human_id and p_session_id is null;
    perform tell_sessions();
    return v_count;
end $$;
comment on function switchboard.close_sessions(uuid, uuid) is
'Signs the human out: everywhere, links that were not used yet included, or of the session p_session_id alone. Returns how many sessions ended. Errors: not_found. Writes human_sessions, sign_in_links; notifies switchboard_control.';

create or replace function switchboard.list_sessions(p_human_id uuid default null)
returns table (session_id uuid, human text, how text, token text, created_at timestamptz, last_seen_at timestamptz, expires_at timestamptz)
language sql stable security definer set search_path = switchboard, pg_temp
as $$
    select s.id, h.name, s.how, t.name, s.created_at, s.last_seen_at, s.expires_at
    from human_sessions s join humans h on h.id = s.human_id left join operator_tokens t on t.id = s.token_id
    where (p_human_id is null or s.human_id = p_human_id) and is_live_session(s, clock())
    order by h.name, s.last_seen_at desc, s.created_at desc, s.id
$$;
comment on function switchboard.list_sessions(uuid) is 'The sessions of a human that are open, NULL: of all, without their secrets: what opened each, the name of the token if it was one. Reads human_sessions, humans, operator_tokens.';

create or replace function switchboard.add_human_identity(p_human_id uuid, p_issuer text, p_subject text) returns void
language plpgsql volatile security definer set search_path = switchboard, pg_temp
as $$
begin
    if p_issuer is null or length(p_issuer) > 1000 or p_issuer !~ '^https?://[^[:space:][:cntrl:]]+$' then
        perform refuse_argument('issuer', 'must be the address of an OpenID provider');
    end if;
    perform check_text('subject', p_subject, 255, true);
    if p_subject ~ '[[:cntrl:]]' then
        perform refuse_argument('subject', 'must be one line');
    elsif not exists (select from humans h where h.id = p_human_id) then
        perform refuse('not_found', 'there is no such human: list_humans shows them');
    end if;
    insert into human_identities (issuer, subject, human_id, created_at) values (p_issuer, p_subject, p_human_id, clock()) on conflict do nothing;
    if not found then
        perform refuse('conflict', 'that identity is somebody''s already: remove it there first');
    end if;
end $$;
comment on function switchboard.add_human_identity(uuid, text, text) is
'From now on who signs in as p_subject at the provider p_issuer is this human. p_issuer: its issuer, letter by letter, up to 1,000 characters; p_subject: the claim sub, 1 to 255 characters. Errors: invalid_argument, not_found, conflict. Reads humans; writes human_identities.';

create or replace function switchboard.remove_human_identity(p_human_id uuid, p_issuer text, p_subject text) returns void
language plpgsql volatile security definer set search_path = switchboard, pg_temp
as $$
begin
    delete from human_identities i where i.human_id = p_human_id and i.issuer = p_issuer and i.subject = p_subject;
    if not found then
        perform refuse('not_found', 'the human has no such identity: list_human_identities shows them');
    end if;
    delete from human_sessions s where s.human_id = p_human_id and s.how = 'oidc';
    perform tell_sessions();
end $$;
comment on function switchboard.remove_human_identity(uuid, text, text) is
'Takes an identity from the human, and ends the sessions that a provider opened. Errors: not_found. Writes human_identities, human_sessions; notifies switchboard_control.';

create or replace function switchboard.list_human_identities(p_human_id uuid default null)
returns table (human text, issuer text, subject text, created_at timestamptz)
language sql stable security definer set search_path = switchboard, pg_temp
as $$
    select h.name, i.issuer, i.subject, i.created_at from human_identities i join humans h on h.id = i.human_id
    where p_human_id is null or i.human_id = p_human_id order by h.name, i.issuer, i.subject
$$;
comment on function switchboard.list_human_identities(uuid) is 'Who a human is at OpenID providers, NULL: all. Reads human_identities, humans.';

create or replace function switchboard.prune_sign_in(p_limit bigint) returns bigint
language plpgsql volatile set search_path = switchboard, pg_temp
as $$
declare
    v_now      timestamptz := clock();
    v_sessions bigint;
    v_links    bigint;
begin
    delete from human_sessions s where s.id in (
        select o.id from human_sessions o where not is_live_session(o, v_now) limit p_limit for update skip locked);
    get diagnostics v_sessions = row_count;
    delete from sign_in_links l where l.id in (
        select o.id from sign_in_links o where o.expires_at <= v_now limit p_limit for update skip locked);
    get diagnostics v_links = row_count;
    return v_sessions + v_links;
end $$;
comment on function switchboard.prune_sign_in(bigint) is 'Deletes sessions that are over and links that have expired, up to p_limit of each. Returns how many. Reads operator_tokens; writes human_sessions, sign_in_links.';
