-- Sealed secrets: what the shell encrypted so that it can be read back.
--
-- The signing secrets of receivers and hooks are sealed with SWITCHBOARD_SECRET_KEY, which this database
-- never sees. Each sealed value names the key that sealed it, so that several keys can live side by side;
-- to end one, the shell opens each value with the old key and seals it with the new one. A value that was
-- changed meanwhile (a rotation of the secret) is left as it is: it is sealed with the new key already.

create or replace function switchboard.list_sealed()
returns table (kind text, endpoint_id uuid, id uuid, slot text, sealed bytea)
language sql stable security definer set search_path = switchboard, pg_temp
as $$
    select s.kind, s.endpoint_id, s.id, s.slot, s.sealed from (
        select 'webhook', w.endpoint_id, w.id, v.slot, v.sealed
        from endpoint_webhooks w cross join lateral (values ('current', w.sealed_secret), ('previous', w.previous_secret)) v (slot, sealed)
        union all
        select 'hook', h.endpoint_id, h.id, v.slot, v.sealed
        from notify_hooks h cross join lateral (values ('current', h.sealed_secret), ('previous', h.previous_secret)) v (slot, sealed)
    ) s (kind, endpoint_id, id, slot, sealed)
    where s.sealed is not null
    order by s.kind, s.endpoint_id, s.id, s.slot
$$;
comment on function switchboard.list_sealed() is
'Every sealed secret: of webhooks (receivers) and of notify hooks, the current one and the one a rotation replaced (slot). Useless without the key. Reads endpoint_webhooks, notify_hooks.';

create or replace function switchboard.reseal(p_kind text, p_endpoint_id text, p_id text, p_slot text, p_old bytea, p_new bytea) returns boolean
language plpgsql volatile security definer set search_path = switchboard, pg_temp
as $$
begin
    if coalesce(octet_length(p_new), 0) = 0 then
        perform refuse_argument('new', 'is missing');
    elsif p_kind = 'webhook' and p_slot = 'current' then
        update endpoint_webhooks w set sealed_secret = p_new where w.endpoint_id = as_uuid(p_endpoint_id) and w.id = as_uuid(p_id) and w.sealed_secret = p_old;
    elsif p_kind = 'webhook' and p_slot = 'previous' then
        update endpoint_webhooks w set previous_secret = p_new where w.endpoint_id = as_uuid(p_endpoint_id) and w.id = as_uuid(p_id) and w.previous_secret = p_old;
    elsif p_kind = 'hook' and p_slot = 'current' then
        update notify_hooks h set sealed_secret = p_new where h.endpoint_id = as_uuid(p_endpoint_id) and h.id = as_uuid(p_id) and h.sealed_secret = p_old;
    elsif p_kind = 'hook' and p_slot = 'previous' then
        update notify_hooks h set previous_secret = p_new where h.endpoint_id = as_uuid(p_endpoint_id) and h.id = as_uuid(p_id) and h.previous_secret = p_old;
    else
        perform refuse_argument('kind', 'must be webhook or hook, with the slot current or previous');
    end if;
    return found;
end $$;
comment on function switchboard.reseal(text, text, text, text, bytea, bytea) is
'Replaces a sealed secret, as list_sealed names it, by the same secret sealed with another key; false when it is no longer p_old. Errors: invalid_argument. Writes endpoint_webhooks, notify_hooks.';
